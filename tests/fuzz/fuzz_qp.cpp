// Queue pairs under a hostile peer and network: an input is a configuration of two connected QPs and a
// program of posts, deliveries (lost, repeated, reordered, changed, made up), time and state changes.
#include "tests/fuzz/qp_world.h"

namespace softrnic::fuzz {
namespace {

constexpr std::uint8_t kPost = 0, kRecv = 2, kSend = 3, kDeliver = 4, kReorder = 5, kDrop = 6, kChange = 7, kRaw = 8,
                       kResize = 9, kTime = 10, kModify = 11, kMemory = 12, kPump = 13, kCollect = 15, kFromB = 0x80;

// A send request of one element of about `pages` * 256 bytes.
void post(Input& v, std::uint8_t opcode, std::uint8_t flags, std::uint8_t pages) {
  v.insert(v.end(), {kPost, opcode, flags});
  if (flags & 0x10) v.push_back(4);    // key to invalidate: the window
  v.insert(v.end(), {0, 1, 0, 1, 2});  // R_Key, remote address, compare, swap
  if (flags & 0x40) {
    v.push_back(33);
    return;
  }
  const bool atomic = opcode == 5 || opcode == 6;
  if (!atomic) v.push_back(1);
  if (!atomic) v.push_back(static_cast<std::uint8_t>(pages << 4 | 9));
  v.insert(v.end(), {0, 0x40, 0});  // address, key
}

void recv(Input& v, std::uint8_t where, std::uint8_t pages) {
  v.insert(v.end(), {static_cast<std::uint8_t>(kRecv | where), 1, static_cast<std::uint8_t>(pages << 4), 0, 0x80, 0});
}

// Traffic with every kind of request, then what `disturb` adds, then time for retries.
Input traffic(std::uint8_t kind, std::uint8_t more, const Input& disturb) {
  Input v = {kind, more};
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 3; ++i) recv(v, kFromB, 4);
    for (std::uint8_t op = 0; op < 10; ++op) post(v, op, op == 7 || op == 9 ? 0x12 : 2, op % 3);
    for (int i = 0; i < 5; ++i) v.push_back(kSend);
    v.insert(v.end(), disturb.begin(), disturb.end());
    for (int i = 0; i < 4; ++i) v.insert(v.end(), {kDeliver, kSend, kSend | kFromB, kDeliver | kFromB});
    v.insert(v.end(), {kPump, kTime | 0x70, 200, kPump, kTime | 0x70, 255, kPump});
  }
  v.push_back(kCollect);
  v.push_back(kCollect | kFromB);
  return v;
}

}  // namespace

std::vector<Input> seeds() {
  const Input disturbances[] = {
      {},
      {kDrop, kDrop},
      {kReorder, 2, kReorder | 0x10, 1, kReorder | 0x10, 0},
      {kChange, 0, 0x04, kChange, 9, 1, kChange | 0x10, 11, 3},
      {kResize, 0, 20, kDeliver, kResize, 1, 40, kDeliver},
      {kRaw, 16, 0x11, 0x40, 0xFF, 0xFF, 0, 0, 0, 0x12, 0, 0, 0, 0x64, 0x60, 0, 0, 1},
      {kRaw, 28, 0x0C, 0x40, 0xFF, 0xFF, 0, 0, 0, 0x12, 0x80, 0, 0, 0x64, 0,
       0,    0,  0,    0,    1,    0,    0, 0, 0, 1,    0,    0, 0, 64,   0},
      {kMemory | 0x10},
      {kMemory | 0x20 | kFromB},
      {kModify, 2, kModify, 7, kModify | kFromB, 1},
      {kModify | kFromB, 0},
      {kModify, 1},
  };
  std::vector<Input> out;
  for (const Input& d : disturbances) {
    for (const std::uint8_t kind : {0x40, 0x60, 0xD0, 0x20, 0x41, 0x91, 0x42, 0x72}) {
      for (const std::uint8_t more : {0x3D, 0x67}) out.push_back(traffic(kind, more, d));
    }
  }
  return out;
}

}  // namespace softrnic::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  softrnic::fuzz::Reader in(data, size);
  softrnic::fuzz::World(in).run();
  return 0;
}

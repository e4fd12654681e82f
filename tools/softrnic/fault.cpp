// softrnic fault.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/softrnic/commands.h"
#include "tools/softrnic/nic_process.h"
#include "tools/softrnic/paths.h"

namespace softrnic::tool {
namespace {

using nlohmann::json;

bool connect(const std::string& dir, control::Connection* nic) {
  control::HelloInfo info;
  std::string why;
  if (connect_nic(socket_path(dir), nic, &info, &why) == 0) return true;
  complain(why);
  return false;
}

bool read_file(const std::string& file, std::string* text) {
  if (file == "-") {
    text->assign(std::istreambuf_iterator<char>(std::cin), {});
    return true;
  }
  std::ifstream in(file);
  text->assign(std::istreambuf_iterator<char>(in), {});
  return in.good() || in.eof();
}

}  // namespace

bool add_faults(control::Connection& nic, const std::string& rules, bool of_connection, control::FaultAddReply* added,
                std::string* why) {
  control::FaultAddRequest request{};
  request.flags = of_connection ? control::kFaultOfConnection : 0;
  std::string body(reinterpret_cast<const char*>(&request), sizeof(request));
  body += rules;
  if (body.size() > control::kMaxMessage - sizeof(control::MsgHeader)) return *why = "the rules are too long", false;
  control::Message reply;
  const int error = nic.call(control::MsgType::fault_add, body.data(), static_cast<std::uint32_t>(body.size()), &reply);
  if (error == 0 && reply.body.size() == sizeof(*added)) {
    std::memcpy(added, reply.body.data(), sizeof(*added));
    return true;
  }
  *why = error == EINVAL && !reply.body.empty() ? std::string(reply.body.begin(), reply.body.end())
                                                : fmt::format("the NIC process refuses it: {}", std::strerror(error));
  return false;
}

int fault_add(const std::string& dir, const std::string& rule, const std::string& file) {
  std::string text = rule;
  if (!file.empty() && !read_file(file, &text))
    return complain(fmt::format("cannot read '{}': {}", file, std::strerror(errno))), kExitFailure;
  control::Connection nic;
  if (!connect(dir, &nic)) return kExitFailure;
  control::FaultAddReply added{};
  std::string why;
  if (!add_faults(nic, text, false, &added, &why)) {
    complain(file.empty() ? fmt::format("{}\n  {}", why, rule) : fmt::format("{}: {}", file, why));
    return kExitFailure;
  }
  for (std::uint32_t i = 0; i < added.count; ++i) fmt::print("fault {}\n", added.first_id + i);
  return 0;
}

int fault_list(const std::string& dir, bool as_json) {
  control::Connection nic;
  if (!connect(dir, &nic)) return kExitFailure;
  control::Message reply;
  if (const int error = nic.call(control::MsgType::fault_list, nullptr, 0, &reply))
    return complain(fmt::format("the NIC process gives no list: {}", std::strerror(error))), kExitFailure;
  const json list = json::parse(report_text(reply), nullptr, false);
  if (list.is_discarded()) return complain("the NIC process gives a list that is no JSON"), kExitFailure;
  if (as_json) {
    fmt::print("{}\n", list.dump(2));
    return 0;
  }
  for (const json& f : list) {
    const std::string left = f["left"].is_null() ? "" : fmt::format(", {} left", f.value("left", 0ull));
    fmt::print("{:>3}  {}  ({} matched, {} applied{})\n", f.value("id", 0u), f.value("rule", ""),
               f.value("matched", 0ull), f.value("applied", 0ull), left);
  }
  return 0;
}

int fault_del(const std::string& dir, const std::string& which) {
  control::FaultDelRequest request{};
  if (which != "all") {
    char* end = nullptr;
    const unsigned long id = std::strtoul(which.c_str(), &end, 10);
    if (*end != '\0' || id == 0 || id > UINT32_MAX)
      return complain(fmt::format("expected the number of a fault or 'all', not '{}'", which)), kExitFailure;
    request.id = static_cast<std::uint32_t>(id);
  }
  control::Connection nic;
  if (!connect(dir, &nic)) return kExitFailure;
  control::Message reply;
  const int error = nic.call(control::MsgType::fault_del, &request, sizeof(request), &reply);
  if (error == 0) return 0;
  complain(error == ENOENT ? fmt::format("there is no fault {}", which)
                           : fmt::format("the NIC process does not remove it: {}", std::strerror(error)));
  return kExitFailure;
}

}  // namespace softrnic::tool

// Runs a fuzz target without libFuzzer, so that inputs once found stay tests under every compiler.
//
//   replay FILE...         runs the inputs in the files
//   replay --seeds DIR     writes the target's seeds to DIR, for libFuzzer to start from
//   replay [--rounds N]    runs the seeds, and N (2000) inputs made from them by a fixed random sequence
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "tests/fuzz/fuzz_target.h"

using softrnic::fuzz::Input;

namespace {

// Runs an input from memory of exactly its size, so that a sanitizer sees reads behind its end.
void run(const Input& input) { LLVMFuzzerTestOneInput(Input(input).data(), input.size()); }

Input read_file(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), std::istreambuf_iterator<char>()};
}

// Changes, removes, repeats and joins parts of inputs.
class Mutator {
 public:
  explicit Mutator(const std::vector<Input>& seeds) : seeds_(seeds) {}
  Input next() {
    Input v = seeds_[below(seeds_.size())];
    for (std::size_t n = 1 + below(8); n > 0; --n) mutate(v);
    return v;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  void mutate(Input& v) {
    const std::size_t at = below(v.size() + 1);
    const auto here = v.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t left = v.size() - at;
    switch (below(6)) {
      case 0:
        if (left != 0) v[at] = static_cast<std::uint8_t>(random_());
        break;
      case 1:
        if (left != 0) v[at] = static_cast<std::uint8_t>(v[at] ^ 1u << below(8));
        break;
      case 2:
        v.insert(here, static_cast<std::uint8_t>(random_()));
        break;
      case 3:
        v.erase(here, here + static_cast<std::ptrdiff_t>(below(left < 16 ? left + 1 : 16)));
        break;
      case 4: {
        const Input part(here, here + static_cast<std::ptrdiff_t>(below(left < 32 ? left + 1 : 32)));
        const std::size_t to = below(v.size() + 1);
        v.insert(v.begin() + static_cast<std::ptrdiff_t>(to), part.begin(), part.end());
        break;
      }
      default: {
        const Input& other = seeds_[below(seeds_.size())];
        const std::size_t from = below(other.size() + 1);
        v.erase(here, v.end());
        v.insert(v.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
    if (v.size() > 8192) v.resize(8192);
  }

  const std::vector<Input>& seeds_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "--rounds";
  const std::vector<Input> seeds = softrnic::fuzz::seeds();
  if (first == "--seeds" && argc == 3) {
    std::filesystem::create_directories(argv[2]);
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      std::ofstream f(std::string(argv[2]) + "/seed-" + std::to_string(i), std::ios::binary);
      f.write(reinterpret_cast<const char*>(seeds[i].data()), static_cast<std::streamsize>(seeds[i].size()));
      if (!f.flush()) return 1;
    }
    return 0;
  }
  if (first != "--rounds") {
    for (int i = 1; i < argc; ++i) run(read_file(argv[i]));
    std::printf("%d inputs\n", argc - 1);
    return 0;
  }
  for (const Input& s : seeds) run(s);
  Mutator mutator(seeds);
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 2000;
  for (int i = 0; i < rounds; ++i) run(mutator.next());
  std::printf("%zu seeds, %d mutations\n", seeds.size(), rounds);
  return 0;
}

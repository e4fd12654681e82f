// ringproto: measures the rules of the data path on real rings, before and without any protocol.
#include <cstdio>
#include <cstring>

#include "tools/bench/ringproto/world.h"

int main(int argc, char** argv) {
  struct Experiment {
    const char* name;
    void (*run)();
  };
  const Experiment experiments[] = {{"rings", ringproto::run_rings},     {"progress", ringproto::run_progress},
                                    {"stopped", ringproto::run_stopped}, {"full", ringproto::run_full},
                                    {"locks", ringproto::run_locks},     {"routes", ringproto::run_routes}};
  if (argc > 1 && argv[1][0] == '-') {
    std::printf("usage: ringproto [rings|progress|stopped|full|locks|routes]...\nWithout a name: all of them.\n");
    return std::strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  for (const Experiment& e : experiments) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strcmp(argv[i], e.name) == 0;
    if (!wanted) continue;
    e.run();
    std::fflush(stdout);
  }
  return 0;
}

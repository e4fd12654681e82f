// no_nic_process: without a NIC process the device list is empty, not an error, and the reason is told once.
#include <infiniband/verbs.h>

#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <string>

int main() {
  setenv("SOFTRNIC_SOCKET", "/nonexistent/control.sock", 1);
  FILE* capture = tmpfile();
  int saved = dup(STDERR_FILENO);
  dup2(fileno(capture), STDERR_FILENO);
  int failures = 0;
  for (int i = 0; i < 3; ++i) {
    int n = -1;
    ibv_device** list = ibv_get_device_list(&n);
    if (list == nullptr || n != 0 || list[0] != nullptr) ++failures;
    if (list) ibv_free_device_list(list);
  }
  dup2(saved, STDERR_FILENO);
  rewind(capture);
  std::string said;
  for (int c; (c = fgetc(capture)) != EOF;) said += static_cast<char>(c);
  printf("said: %s", said.c_str());
  bool one_line = said.find('\n') == said.size() - 1;
  bool helpful =
      said.find("/nonexistent/control.sock") != std::string::npos && said.find("softrnic run -- ") != std::string::npos;
  if (said.empty() || !one_line || !helpful) ++failures;
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

// A NIC process inside the test: control server and eSwitch on threads, in a directory of its own.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/control/client/client.h"
#include "engine/control/server/nic_host.h"

namespace softrnic::test {

class TempDir {
 public:
  TempDir() {
    const char* base = std::getenv("TMPDIR");
    std::string name = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/softrnic-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class HostFixture {
 public:
  explicit HostFixture(control::NicHostOptions options = {}, std::unique_ptr<control::Network> network = nullptr) {
    options.dir = dir_.path();
    std::string why;
    if (control::NicHost::create(std::move(options), &host_, &why) != 0) throw std::runtime_error(why);
    if (network != nullptr) host_->set_network(std::move(network));
    host_->start();
  }

  control::NicHost& host() { return *host_; }
  const std::string& dir() const { return dir_.path(); }
  const std::string& socket_path() const { return host_->socket_path(); }
  void end_host() { host_.reset(); }

 private:
  TempDir dir_;
  std::unique_ptr<control::NicHost> host_;
};

}  // namespace softrnic::test

// How a transport reaches registered memory. The engine implements it over the process's memory
// regions, the simulator over its own arrays. Resolving checks key, bounds, access and PD on every
// touch (IBA 10.6.3); the copies survive memory that the application has unmapped.
#pragma once

#include "protocols/common/work.h"

namespace softrnic {

// Opaque protection-domain number, unique within the engine.
using PdHandle = std::uint32_t;

enum class MemStatus : std::uint8_t {
  ok,
  bad_key,     // no such key, invalid state, or another protection domain
  bad_bounds,  // outside the region, or the end wraps around
  bad_access,  // the region does not allow it
  fault,       // memory is not mapped any more (found while copying)
};

class MemoryPort {
 public:
  // L_Key check of [addr, addr+length) for local use; `access` is 0 (gather) or kAccessLocalWrite
  // (scatter). On ok `*out` is the memory. length 0 is never passed.
  virtual MemStatus resolve_local(PdHandle pd, std::uint32_t lkey, std::uint64_t addr, std::uint32_t length,
                                  std::uint32_t access, std::uint8_t** out) = 0;

  // R_Key check for a remote request arriving at QP `qpn`; `access` is one of kAccessRemote*.
  virtual MemStatus resolve_remote(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey, std::uint64_t addr,
                                   std::uint64_t length, std::uint32_t access, std::uint8_t** out) = 0;

  // Copies packet bytes to application memory in ascending order, the last bytes stored last.
  // False when the destination is not writable any more.
  virtual bool copy_to_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) = 0;

  // Copies application memory into a packet. False when the source is not readable any more.
  virtual bool copy_from_app(std::uint8_t* dst, const std::uint8_t* src, std::size_t length) = 0;

  // Executes an atomic on 8 aligned bytes in host order, atomically with respect to the host's CPUs.
  // compare_swap: *p == compare ? *p = swap_or_add; else fetch-add. `*original` gets the old value.
  virtual bool atomic64(std::uint8_t* p, bool compare_swap, std::uint64_t compare, std::uint64_t swap_or_add,
                        std::uint64_t* original) = 0;

  // Remote (SEND with Invalidate) or local invalidation of a memory window or fast-registered region by
  // QP `qpn` (IBA 10.6.5, 9.4.1.1.3). bad_key/bad_access when it may not be invalidated.
  virtual MemStatus invalidate(PdHandle pd, std::uint32_t qpn, std::uint32_t rkey) = 0;

  // Binds a type 2 memory window from a work request (IBA 10.6.7.2).
  struct MwBind {
    std::uint32_t mw_rkey;   // current R_Key of the window (its index part names the window)
    std::uint32_t new_rkey;  // low byte is the new key part
    std::uint32_t mr_lkey;
    std::uint64_t addr;
    std::uint64_t length;
    std::uint32_t access;
  };
  virtual MemStatus bind_mw(PdHandle pd, std::uint32_t qpn, const MwBind& bind) = 0;

 protected:
  ~MemoryPort() = default;
};

}  // namespace softrnic

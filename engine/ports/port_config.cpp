#include "engine/ports/port_config.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace softrnic::ports {
namespace {

bool parse_number(std::string_view text, unsigned most, unsigned* out) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value > most) return false;
  *out = value;
  return true;
}

// Cuts "%VLAN" off.
bool take_vlan(std::string_view* text, std::uint16_t* vlan, std::string* why) {
  *vlan = neigh::kNoVlan;
  const auto at = text->find('%');
  if (at == std::string_view::npos) return true;
  unsigned id = 0;
  if (!parse_number(text->substr(at + 1), 4094, &id) || id == 0) {
    *why = fmt::format("{}: a VLAN is a number from 1 to 4094", *text);
    return false;
  }
  *vlan = static_cast<std::uint16_t>(id);
  *text = text->substr(0, at);
  return true;
}

// "ADDRESS/LENGTH"; without length that of a single address.
bool parse_prefix(std::string_view text, Gid* ip, std::uint8_t* length, std::string* why) {
  const auto slash = text.find('/');
  if (!parse_ip(text.substr(0, slash), ip)) {
    *why = fmt::format("{}: not an IPv4 or IPv6 address", text);
    return false;
  }
  const unsigned most = neigh::is_ipv4(*ip) ? 32 : 128;
  unsigned bits = most;
  if (slash != std::string_view::npos && !parse_number(text.substr(slash + 1), most, &bits)) {
    *why = fmt::format("{}: a prefix has 0 to {} bits", text, most);
    return false;
  }
  *length = static_cast<std::uint8_t>(bits);
  return true;
}

}  // namespace

bool parse_ip(std::string_view text, Gid* out) {
  const std::string copy(text);
  in_addr v4{};
  if (::inet_pton(AF_INET, copy.c_str(), &v4) == 1) {
    *out = neigh::from_ipv4(ntohl(v4.s_addr));
    return true;
  }
  return ::inet_pton(AF_INET6, copy.c_str(), out->raw) == 1;
}

std::string to_string(const Gid& ip) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = neigh::is_ipv4(ip);
  return ::inet_ntop(v4 ? AF_INET : AF_INET6, ip.raw + (v4 ? 12 : 0), text, sizeof(text));
}

std::string to_string(const neigh::Mac& mac) { return fmt::format("{:02x}", fmt::join(mac, ":")); }

bool parse_address(std::string_view text, neigh::OwnAddress* out, std::string* why) {
  if (!take_vlan(&text, &out->vlan, why) || !parse_prefix(text, &out->ip, &out->prefix_length, why)) return false;
  if (neigh::is_multicast(out->ip) || neigh::is_unspecified(out->ip)) {
    *why = fmt::format("{}: not the address of a host", text);
    return false;
  }
  return true;
}

bool parse_route(std::string_view text, neigh::Route* out, std::string* why) {
  if (!take_vlan(&text, &out->vlan, why)) return false;
  const auto equals = text.find('=');
  const std::string_view gateway = equals == std::string_view::npos ? text : text.substr(equals + 1);
  if (!parse_ip(gateway, &out->gateway) || neigh::is_multicast(out->gateway)) {
    *why = fmt::format("{}: the gateway is not the address of a host", text);
    return false;
  }
  if (equals == std::string_view::npos) {
    out->prefix = neigh::is_ipv4(out->gateway) ? neigh::from_ipv4(0) : Gid{};
    out->length = 0;
    return true;
  }
  if (!parse_prefix(text.substr(0, equals), &out->prefix, &out->length, why)) return false;
  if (neigh::is_ipv4(out->prefix) == neigh::is_ipv4(out->gateway)) return true;
  *why = fmt::format("{}: prefix and gateway are of different families", text);
  return false;
}

bool parse_mac(std::string_view text, neigh::Mac* out, std::string* why) {
  bool good = text.size() == 17;
  for (unsigned i = 0; good && i < 6; ++i) {
    const char* p = text.data() + 3 * i;
    const auto [end, error] = std::from_chars(p, p + 2, (*out)[i], 16);
    good = error == std::errc{} && end == p + 2 && (i == 5 || p[2] == ':');
  }
  if (!good || !neigh::is_unicast(*out)) *why = fmt::format("{}: not the MAC address of a station", text);
  return good && neigh::is_unicast(*out);
}

namespace {

bool refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return false;
}

bool add_port(std::vector<PortConfig>* ports, std::string_view device, std::string* why) {
  if (ports->size() >= kMaxPorts) return refuse(why, fmt::format("there are at most {} ports", kMaxPorts));
  for (const PortConfig& other : *ports)
    if (device_name(other.device) == device_name(device))
      return refuse(why, fmt::format("{}: there is a port on this device already", device_name(device)));
  ports->emplace_back().device = device;
  return true;
}

bool add_address(std::vector<PortConfig>* ports, std::string_view value, std::string* why) {
  neigh::OwnAddress address;
  if (!parse_address(value, &address, why)) return false;
  for (const PortConfig& port : *ports) {
    for (const neigh::OwnAddress& a : port.addresses) {
      // An address may be used once in each VLAN of a port, but packets must tell which port they are for.
      if (a.ip != address.ip || (&port == &ports->back() && a.vlan != address.vlan)) continue;
      return refuse(why, fmt::format("{}: port {} has this address already", value, device_name(port.device)));
    }
  }
  ports->back().addresses.push_back(address);
  return true;
}

bool add_route(PortConfig* port, std::string_view value, std::string* why) {
  neigh::Route route;
  if (!parse_route(value, &route, why)) return false;
  const auto reaches = [&](const neigh::OwnAddress& a) {
    return a.vlan == route.vlan && neigh::same_prefix(a.ip, route.gateway, a.prefix_length);
  };
  if (!neigh::is_link_local(route.gateway) && std::none_of(port->addresses.begin(), port->addresses.end(), reaches))
    return refuse(why, fmt::format("{}: none of the port's addresses before it has the gateway in its prefix", value));
  port->routes.push_back(route);
  return true;
}

bool set_mac(std::vector<PortConfig>* ports, std::string_view value, std::string* why) {
  neigh::Mac mac{};
  if (!parse_mac(value, &mac, why)) return false;
  for (const PortConfig& other : *ports)
    if (&other != &ports->back() && other.mac == mac)
      return refuse(why, fmt::format("{}: port {} has this MAC already", value, device_name(other.device)));
  ports->back().mac = mac;
  return true;
}

}  // namespace

bool set_property(std::vector<PortConfig>* ports, std::string_view key, std::string_view value, std::string* why) {
  if (key == "port") return add_port(ports, value, why);
  const bool known = key == "ip" || key == "route" || key == "mac" || key == "mtu" || key == "detect-duplicates";
  if (!known) return refuse(why, fmt::format("{}: a port has ip, route, mac, mtu and detect-duplicates", key));
  if (ports->empty()) return refuse(why, "there is no port before it");
  if (key == "ip") return add_address(ports, value, why);
  PortConfig& port = ports->back();
  if (key == "route") return add_route(&port, value, why);
  if (key == "mac") return set_mac(ports, value, why);
  if (key == "mtu") {
    unsigned mtu = 0;
    if (!parse_number(value, kMaxMtu, &mtu) || mtu < kMinMtu)
      return refuse(why, fmt::format("{}: an MTU is a number from {} to {}", value, kMinMtu, kMaxMtu));
    port.mtu = mtu;
    return true;
  }
  if (value != "yes" && value != "no") return refuse(why, fmt::format("{}: detect-duplicates is yes or no", value));
  port.detect_duplicates = value == "yes";
  return true;
}

bool parse_config(std::string_view text, std::vector<PortConfig>* out, std::string* why) {
  constexpr std::string_view kSpace = " \t\r";
  unsigned number = 0;
  while (!text.empty()) {
    ++number;
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    line = line.substr(0, line.find('#'));
    line.remove_prefix(std::min(line.find_first_not_of(kSpace), line.size()));
    line = line.substr(0, line.find_last_not_of(kSpace) + 1);
    if (line.empty()) continue;
    const auto space = line.find_first_of(kSpace);
    const std::string_view key = line.substr(0, space);
    std::string_view value = space == std::string_view::npos ? std::string_view{} : line.substr(space);
    value.remove_prefix(std::min(value.find_first_not_of(kSpace), value.size()));
    std::string reason;
    if (value.empty()) {
      reason = fmt::format("{}: the value is missing", key);
    } else {
      set_property(out, key, value, &reason);
    }
    if (reason.empty()) continue;
    *why = fmt::format("line {}: {}", number, reason);
    return false;
  }
  return true;
}

std::string device_name(std::string_view device) { return std::string(device.substr(0, device.find(','))); }

std::string device_argument(std::string_view device, std::string_view key) {
  auto at = device.find(',');
  while (at != std::string_view::npos) {
    const auto next = device.find(',', at + 1);
    const std::string_view item = device.substr(at + 1, next == std::string_view::npos ? next : next - at - 1);
    const auto equals = item.find('=');
    if (equals != std::string_view::npos && item.substr(0, equals) == key) return std::string(item.substr(equals + 1));
    at = next;
  }
  return {};
}

bool is_driver(std::string_view device, std::string_view driver) {
  const std::string name = device_name(device);
  if (name.compare(0, driver.size(), driver) != 0) return false;
  return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(driver.size()), name.end(),
                     [](char c) { return (c >= '0' && c <= '9') || c == '_'; });
}

std::string device_for_mtu(const std::string& device, std::uint32_t mtu, std::uint32_t ring_bytes) {
  if (!is_driver(device, "net_af_packet") || !device_argument(device, "framesz").empty()) return device;
  // Ethernet and VLAN header, and the kernel's own header and alignment in front of each frame in the ring.
  constexpr std::uint32_t kOverhead = 18 + 110;
  std::uint32_t frame = 2048;
  while (frame < mtu + kOverhead) frame *= 2;
  std::string full = fmt::format("{},framesz={}", device, frame);
  if (device_argument(device, "blocksz").empty()) full += fmt::format(",blocksz={}", std::max(frame, 65536u));
  if (device_argument(device, "framecnt").empty()) full += fmt::format(",framecnt={}", ring_bytes / frame);
  return full;
}

neigh::Mac default_mac(std::string_view device, const neigh::Mac& of_device) {
  if (!is_driver(device, "net_af_packet") && !is_driver(device, "net_af_xdp") && !is_driver(device, "net_tap"))
    return of_device;
  std::uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, so that it is the same at every start
  for (const std::uint8_t byte : of_device) hash = (hash ^ byte) * 0x100000001B3u;
  neigh::Mac mac;
  for (unsigned i = 0; i < 6; ++i) mac[i] = static_cast<std::uint8_t>(hash >> (8 * i));
  mac[0] = static_cast<std::uint8_t>((mac[0] & 0xFC) | 0x02);  // unicast, locally administered
  return mac;
}

std::uint32_t roce_mtu(std::uint32_t mtu) {
  // IPv6, UDP, BTH, XRCETH, RETH, ImmDt and ICRC: the longest headers of a packet with payload.
  constexpr std::uint32_t kHeaders = 40 + 8 + 12 + 4 + 16 + 4 + 4;
  std::uint32_t payload = 4096;
  while (payload > 256 && payload + kHeaders > mtu) payload /= 2;
  return payload;
}

}  // namespace softrnic::ports

// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace apex {

enum class DeviceKind : unsigned char { cpu, cuda };

/// Where a tensor lives. The CPU is one device, index 0.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  bool is_cpu() const noexcept { return kind == DeviceKind::cpu; }
  bool is_cuda() const noexcept { return kind == DeviceKind::cuda; }
  friend bool operator==(const Device&, const Device&) = default;
};

inline constexpr Device kCpu{};

/// True when the library was configured with the CUDA backend.
#ifdef APEX_HAS_CUDA
inline constexpr bool has_cuda = true;
#else
inline constexpr bool has_cuda = false;
#endif

/// "cpu", "cuda:0".
std::string to_string(Device device);
std::ostream& operator<<(std::ostream& out, Device device);
/// Takes "cpu", "cuda", "cuda:N".
std::optional<Device> parse_device(std::string_view text);

/// Throws Kind::unsupported: this build has no backend for `device`.
[[noreturn]] void throw_not_built(const char* op, Device device);

}  // namespace apex

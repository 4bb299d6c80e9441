// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace apex {

/// a * b + c as a size. A size may be near 2^63 without any memory behind it (an expanded tensor, an empty one, an
/// option), so what is made of sizes is formed with this. @throws Kind::argument, naming op, when int64 cannot hold it
std::int64_t size_of_sum(const char* op, std::int64_t a, std::int64_t b, std::int64_t c);

}  // namespace apex

// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "apex/core/error.hpp"
#include "apex/io/image/image.hpp"
#include "support/subprocess.hpp"

namespace apex::test {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

inline void write_bytes(const fs::path& path, std::span<const std::uint8_t> bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good()) << path;
}
inline void write_text(const fs::path& path, const std::string& text) {
  write_bytes(path, std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}
inline Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}
inline std::string read_text(const fs::path& path) {
  const Bytes bytes = read_bytes(path);
  return {bytes.begin(), bytes.end()};
}

/// The picture that the reference values of resizing were computed from.
inline io::Image formula_image(int width, int height, int channels) {
  io::Image image(width, height, channels);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        image.row(y)[x * channels + c] = static_cast<std::uint8_t>((x * 7 + y * 13 + c * 50 + x * y) % 256);
  return image;
}

/// Runs `call`, expects an Error of this kind whose one line has each of `words` in it.
inline void expect_error(Kind kind, const std::vector<std::string>& words, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), kind) << to_string(error.kind()) << ": " << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    for (const auto& word : words) EXPECT_NE(what.find(word), std::string::npos) << "no '" << word << "' in: " << what;
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected " << to_string(kind);
}

}  // namespace apex::test

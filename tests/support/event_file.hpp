// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "apex/io/log/tensorboard.hpp"

// Reads TensorBoard's event files from the description of their format; shares no code with the writer but the
// checksum, which has a test of its own.

namespace apex::test {

template <class T>
T little(const std::string& text, std::size_t at) {
  T value = 0;
  for (std::size_t k = 0; k < sizeof value; ++k)
    value |= static_cast<T>(static_cast<unsigned char>(text.at(at + k))) << (8 * k);
  return value;
}

/// The contents of the records, checksums verified.
inline std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (std::size_t at = 0; at < file.size();) {
    const auto length = little<std::uint64_t>(file, at);
    EXPECT_EQ(little<std::uint32_t>(file, at + 8), io::masked_crc32c(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(little<std::uint32_t>(file, at + 12 + length), io::masked_crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

/// A protocol buffer: for each field number its values, numbers as 64 bits and the rest as bytes.
struct Message {
  std::map<int, std::vector<std::uint64_t>> numbers;
  std::map<int, std::vector<std::string>> bytes;

  explicit Message(const std::string& text) {
    std::size_t at = 0;
    const auto varint = [&] {
      std::uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(text.at(at++));
        value |= std::uint64_t{byte & 0x7fu} << shift;
        if (byte < 0x80) return value;
      }
    };
    while (at < text.size()) {
      const std::uint64_t key = varint();
      const int field = static_cast<int>(key >> 3);
      switch (key & 7) {
        case 0: numbers[field].push_back(varint()); break;
        case 1:
          numbers[field].push_back(little<std::uint64_t>(text, at));
          at += 8;
          break;
        case 2: {
          const std::uint64_t length = varint();
          EXPECT_LE(at + length, text.size());
          bytes[field].push_back(text.substr(at, length));
          at += length;
          break;
        }
        case 5:
          numbers[field].push_back(little<std::uint32_t>(text, at));
          at += 4;
          break;
        default: ADD_FAILURE() << "wire type " << (key & 7); return;
      }
    }
  }
  std::uint64_t number(int field) const { return numbers.contains(field) ? numbers.at(field).front() : 0; }
  std::string text(int field) const { return bytes.contains(field) ? bytes.at(field).front() : std::string(); }
  Message message(int field) const { return Message(text(field)); }
  double real(int field) const { return std::bit_cast<double>(number(field)); }
};

/// What TensorBoard shows of a folder.
struct Events {
  std::map<std::string, std::map<std::int64_t, float>> scalars;
  std::map<std::string, std::map<std::int64_t, std::string>> texts;
  std::vector<Message> hparams;  ///< HParamsPluginData, in order
  int files = 0;
  std::vector<std::int64_t> purges;
};

inline Events events_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Events out;
  for (const auto& path : files) {
    ++out.files;
    std::ifstream stream(path, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(stream)), {});
    bool first = true;
    for (const auto& record : records_of(content)) {
      const Message event(record);
      const auto step = static_cast<std::int64_t>(event.number(2));
      EXPECT_GT(event.real(1), 1.6e9) << "wall time";
      if (first) {
        EXPECT_EQ(event.text(3), "brain.Event:2");
      }
      first = false;
      if (event.bytes.contains(7) && event.message(7).number(1) == 1) {  // a session starts: forget what comes again
        out.purges.push_back(step);
        for (auto& [tag, values] : out.scalars) values.erase(values.lower_bound(step), values.end());
        for (auto& [tag, values] : out.texts) values.erase(values.lower_bound(step), values.end());
      }
      if (!event.bytes.contains(5)) continue;
      const Message value = event.message(5).message(1);
      const std::string tag = value.text(1);
      if (value.numbers.contains(2)) {
        EXPECT_TRUE(
            out.scalars[tag].emplace(step, std::bit_cast<float>(static_cast<std::uint32_t>(value.number(2)))).second)
            << tag << " twice at step " << step;
        continue;
      }
      const Message plugin = value.message(9).message(1);
      if (plugin.text(1) == "text") {
        EXPECT_TRUE(out.texts[tag].emplace(step, value.message(8).text(8)).second) << tag << " twice at step " << step;
      } else if (plugin.text(1) == "hparams") {
        out.hparams.emplace_back(plugin.text(2));
      } else {
        ADD_FAILURE() << tag << " is for nobody";
      }
    }
  }
  return out;
}

}  // namespace apex::test

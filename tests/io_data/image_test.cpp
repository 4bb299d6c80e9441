// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "io_data/common.hpp"

#include <random>

#include "support/jpeg.hpp"

namespace apex::io {
namespace {

using test::Bytes;
using test::expect_error;

const test::fs::path kFixtures = APEX_FIXTURES;

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : test::fs::directory_iterator(kFixtures))
    if (entry.path().extension() == ".jpg" || entry.path().extension() == ".png")
      names.push_back(entry.path().filename().string());
  return names;
}

TEST(Decode, EqualsPillowForEveryKindOfFile) {
  const auto names = fixture_names();
  ASSERT_GE(names.size(), 37u);
  for (const auto& name : names) {
    const Bytes file = test::read_bytes(kFixtures / name);
    const Image rgb = decode_image(file, 3, name), gray = decode_image(file, 1, name);
    EXPECT_EQ(rgb.channels, 3) << name;
    EXPECT_EQ(gray.channels, 1) << name;
    if (name == "progressive.jpg") {
      EXPECT_EQ(rgb.width, 33);
      EXPECT_EQ(rgb.height, 17);
    } else if (name != "one_pixel.jpg") {
      EXPECT_EQ(rgb.width, 13) << name;
      EXPECT_EQ(rgb.height, 9) << name;
    }
    EXPECT_EQ(rgb.pixels, test::read_bytes(kFixtures / (name + ".rgb"))) << name;
    EXPECT_EQ(gray.pixels, test::read_bytes(kFixtures / (name + ".gray"))) << name;
  }
}

TEST(Decode, GoesByContentNotByName) {
  EXPECT_EQ(sniff_image_format(test::read_bytes(kFixtures / "rgb.png")), ImageFormat::png);
  EXPECT_EQ(sniff_image_format(test::read_bytes(kFixtures / "gray.jpg")), ImageFormat::jpeg);
  EXPECT_EQ(sniff_image_format({}), ImageFormat::unknown);
  const Image image = decode_image(test::read_bytes(kFixtures / "rgb.png"), 3, "n02105855_2933.JPEG");
  EXPECT_EQ(image.pixels, test::read_bytes(kFixtures / "rgb.png.rgb"));
  const Image other = decode_image(test::read_bytes(kFixtures / "rgb444.jpg"), 3, "a.png");
  EXPECT_EQ(other.pixels, test::read_bytes(kFixtures / "rgb444.jpg.rgb"));
}

// Orientation 6 asks viewers to turn the picture; torchvision does not, and the fixture's pixels are as they are
// stored.
TEST(Decode, LeavesTheOrientationAlone) {
  const Bytes file = test::read_bytes(kFixtures / "exif_rotated.jpg");
  const Bytes tag = {0x01, 0x12, 0x00, 0x03, 0x00, 0x00, 0x00, 0x01, 0x00, 0x06};
  ASSERT_NE(std::search(file.begin(), file.end(), tag.begin(), tag.end()), file.end());
  const Image image = decode_image(file, 3, "a.jpg");
  EXPECT_EQ(image.width, 13);
  EXPECT_EQ(image.height, 9);
}

TEST(Decode, NamesFormatsItDoesNotRead) {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> cases[] = {
      {"RIFF\x24\0\0\0WEBPVP8 "s, "WebP"},
      {"GIF89a\1\0\1\0"s, "GIF"},
      {"GIF87a\1\0\1\0"s, "GIF"},
      {"II*\0\x08\0\0\0"s, "TIFF"},
      {"MM\0*\0\0\0\x08"s, "TIFF"},
      {"BM\x46\0\0\0\0\0\0\0\x36\0\0\0"s, "BMP"},
      {"\0\0\0\x0cjP  \r\n\x87\n"s, "JPEG 2000"},
      {"\0\0\0\x0cJXL \r\n\x87\n"s, "JPEG XL"},
      {"\0\0\0\x20"
       "ftypavif\0\0\0\0"s,
       "AVIF"},
      {"\0\0\0\x18"
       "ftypheic\0\0\0\0"s,
       "HEIF"},
  };
  for (const auto& [text, format] : cases) {
    const Bytes file(text.begin(), text.end());
    expect_error(Kind::data, {"n01.JPEG", format + " is not supported", "convert"},
                 [&] { decode_image(file, 3, "n01.JPEG"); });
  }
  const Bytes riff = {'R', 'I', 'F', 'F', 0, 0, 0, 0, 'W', 'A', 'V', 'E'};
  expect_error(Kind::data, {"neither JPEG nor PNG"}, [&] { decode_image(riff, 3, "a"); });
}

TEST(Decode, NamesWhatCannotBeUsed) {
  const Bytes png = test::read_bytes(kFixtures / "rgb.png");
  expect_error(Kind::argument, {"channels is 2"}, [&] { decode_image(png, 2, "a.png"); });
  expect_error(Kind::data, {"a.png", "empty"}, [] { decode_image({}, 3, "a.png"); });
  const Bytes text = {'h', 'e', 'l', 'l', 'o', ' ', 't', 'h', 'e', 'r', 'e'};
  expect_error(Kind::data, {"a.png", "neither JPEG nor PNG"}, [&] { decode_image(text, 3, "a.png"); });
  expect_error(Kind::data, {"a.png", "13x9", "100"}, [&] { decode_image(png, 3, "a.png", 100); });
  EXPECT_NO_THROW(decode_image(png, 3, "a.png", 13 * 9));
}

// A header that promises 60000 x 60000 pixels must be refused before memory is taken for them.
TEST(Decode, RefusesDecompressionBombs) {
  Bytes jpeg = test::read_bytes(kFixtures / "rgb444.jpg");
  const Bytes marker = {0xff, 0xc0};  // start of frame: length, precision, height, width
  const auto frame = std::search(jpeg.begin(), jpeg.end(), marker.begin(), marker.end());
  ASSERT_NE(frame, jpeg.end());
  std::fill(frame + 5, frame + 9, std::uint8_t{0xea});
  expect_error(Kind::data, {"b.jpg", "60138x60138", "limit"}, [&] { decode_image(jpeg, 3, "b.jpg"); });
}

TEST(Decode, EveryCutIsNoticed) {
  for (const auto& name : fixture_names()) {
    const Bytes file = test::read_bytes(kFixtures / name);
    // JPEG may lose its end marker and PNG nothing: each cut up to there leaves pixels missing.
    const std::size_t most = file.size() - (name.ends_with(".jpg") ? 2 : 1);
    for (std::size_t size = 0; size < most; size += size < 64 ? 1 : 7) {
      const std::span<const std::uint8_t> part(file.data(), size);
      expect_error(Kind::data, {"cut " + name}, [&] { decode_image(part, 3, "cut " + name); });
    }
  }
}

// Whatever the bytes are, the answer is a picture or one Error of kind data.
TEST(Decode, DamagedBytesNeverCrash) {
  std::mt19937 random(7);
  int refused = 0;
  for (const auto& name : fixture_names()) {
    const Bytes file = test::read_bytes(kFixtures / name);
    for (int round = 0; round < 200; ++round) {
      Bytes damaged = file;
      for (int k = 0; k <= round % 4; ++k)
        damaged[random() % damaged.size()] ^= static_cast<std::uint8_t>(1u << random() % 8);
      try {
        const Image image = decode_image(damaged, 3, name, 1 << 20);
        EXPECT_EQ(image.pixels.size(), std::size_t(image.width) * image.height * 3);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Kind::data) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);  // most damage to files this small is noticed
}

TEST(PlainJpeg, SaysWhatTheHeaderSays) {
  const auto info_of = [](const char* name) { return plain_jpeg_info(test::read_bytes(kFixtures / name)); };
  const auto want = [](bool gray, int x, int y) {
    return std::optional<JpegInfo>({.width = 13, .height = 9, .gray = gray, .chroma_x = x, .chroma_y = y});
  };
  EXPECT_EQ(info_of("rgb444.jpg"), want(false, 1, 1));
  EXPECT_EQ(info_of("rgb422.jpg"), want(false, 2, 1));
  EXPECT_EQ(info_of("rgb420.jpg"), want(false, 2, 2));
  EXPECT_EQ(info_of("gray.jpg"), want(true, 1, 1));
  for (const char* other : {"progressive.jpg", "cmyk.jpg", "cmyk_plain.jpg", "ycck.jpg", "rgb.png", "gray.png"})
    EXPECT_FALSE(info_of(other)) << other;
  const Image picture = test::photo_like(50, 31, 3, 1);
  EXPECT_EQ(plain_jpeg_info(test::encode_jpeg_as(picture, {.chroma_x = 1, .chroma_y = 2}))->chroma_y, 2);
  EXPECT_EQ(plain_jpeg_info(test::encode_jpeg_as(picture, {.chroma_x = 4, .chroma_y = 1}))->chroma_x, 4);
  EXPECT_FALSE(plain_jpeg_info(test::encode_jpeg_as(picture, {.stores_rgb = true})));
  EXPECT_FALSE(plain_jpeg_info(test::encode_jpeg_as(picture, {.progressive = true})));
  EXPECT_FALSE(plain_jpeg_info({}));
}

TEST(PlainJpeg, EveryCutAndStrayMarkerIsNoticed) {
  for (const int restart : {0, 2}) {
    const Bytes file = test::encode_jpeg_as(test::photo_like(70, 45, 3, 2), {.restart_interval = restart});
    ASSERT_TRUE(plain_jpeg_info(file));
    for (std::size_t size = 0; size + 1 < file.size(); ++size)
      EXPECT_FALSE(plain_jpeg_info(std::span(file).first(size))) << size << " of " << file.size() << " bytes";
    Bytes longer = file;
    longer.insert(longer.end(), {1, 2, 3});
    EXPECT_TRUE(plain_jpeg_info(longer)) << "bytes behind the end are harmless";
    const std::size_t data = file.size() - 300;
    for (const int marker : {0xd8, 0xc4, 0xd3, 0x01}) {
      Bytes stray = file;
      stray[data] = 0xff;
      stray[data + 1] = static_cast<std::uint8_t>(marker);
      EXPECT_FALSE(plain_jpeg_info(stray)) << marker;
    }
  }
}

TEST(Encode, PngIsLossless) {
  for (const int channels : {1, 3})
    for (const auto& [width, height] : {std::pair{1, 1}, {17, 5}, {64, 33}}) {
      const Image image = test::formula_image(width, height, channels);
      const Image back = decode_image(encode_png(image.view()), channels, "x");
      EXPECT_EQ(back.width, width);
      EXPECT_EQ(back.height, height);
      EXPECT_EQ(back.pixels, image.pixels);
    }
  expect_error(Kind::argument, {"5 channels"}, [] { encode_png(Image(2, 2, 5).view()); });
  expect_error(Kind::argument, {"0x3"}, [] { encode_png(Image(0, 3, 1).view()); });
}

TEST(Encode, PngDropsAlphaWithoutBlending) {
  Image rgba(2, 1, 4);
  rgba.pixels = {10, 20, 30, 0, 200, 100, 50, 128};
  EXPECT_EQ(decode_image(encode_png(rgba.view()), 3, "x").pixels, (Bytes{10, 20, 30, 200, 100, 50}));
  Image gray_alpha(1, 1, 2);
  gray_alpha.pixels = {77, 3};
  EXPECT_EQ(decode_image(encode_png(gray_alpha.view()), 3, "x").pixels, (Bytes{77, 77, 77}));
}

TEST(Encode, JpegIsCloseAndTakesAView) {
  Image image(40, 30, 3);
  for (int y = 0; y < 30; ++y)
    for (int x = 0; x < 40; ++x)
      for (int c = 0; c < 3; ++c) image.row(y)[3 * x + c] = static_cast<std::uint8_t>(2 * x + 3 * y + 10 * c);
  ImageView right_half = image.view();
  right_half.data += 20 * 3;
  right_half.width = 20;
  const Image back = decode_image(encode_jpeg(right_half, 95), 3, "x");
  ASSERT_EQ(back.width, 20);
  ASSERT_EQ(back.height, 30);
  for (int y = 0; y < 30; ++y)
    for (int k = 0; k < 60; ++k) ASSERT_NEAR(back.row(y)[k], right_half.row(y)[k], 6) << y << ',' << k;
  expect_error(Kind::argument, {"quality 0"}, [&] { encode_jpeg(image.view(), 0); });
  expect_error(Kind::argument, {"quality 101"}, [&] { encode_jpeg(image.view(), 101); });
  expect_error(Kind::argument, {"4 channels"}, [] { encode_jpeg(Image(2, 2, 4).view(), 90); });
  expect_error(Kind::argument, {"70000x1"}, [] { encode_jpeg(Image(70000, 1, 1).view(), 90); });
}

TEST(ConvertChannels, BothWays) {
  Image rgb(2, 1, 3);
  rgb.pixels = {255, 0, 0, 12, 200, 90};
  const Image gray = convert_channels(rgb.view(), 1);
  EXPECT_EQ(gray.pixels, (Bytes{76, 131}));  // 0.299*255 = 76.2; 0.299*12 + 0.587*200 + 0.114*90 = 131.2
  EXPECT_EQ(convert_channels(gray.view(), 3).pixels, (Bytes{76, 76, 76, 131, 131, 131}));
  EXPECT_EQ(convert_channels(rgb.view(), 3).pixels, rgb.pixels);
  expect_error(Kind::argument, {"4"}, [] { convert_channels(Image(1, 1, 4).view(), 3); });
}

}  // namespace
}  // namespace apex::io

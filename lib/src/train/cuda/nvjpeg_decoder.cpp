// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "nvjpeg_decoder.hpp"

#include <algorithm>
#include <cstdlib>

#include "apex/core/error.hpp"
#include "apex/core/unique_handle.hpp"
#include "apex/kernels/image.hpp"
#include "nvjpeg_memory.hpp"

namespace apex::train {
namespace {

constexpr std::size_t kMostBytes = std::size_t{512} << 20;  // decoded at a time, unless one picture alone takes more
constexpr std::size_t kAlignment = 256;                     // of a decoded picture

const char* text_of(nvjpegStatus_t status) {
  switch (status) {
    case NVJPEG_STATUS_SUCCESS: return "success";
    case NVJPEG_STATUS_NOT_INITIALIZED: return "not initialized";
    case NVJPEG_STATUS_INVALID_PARAMETER: return "invalid parameter";
    case NVJPEG_STATUS_BAD_JPEG: return "bad JPEG";
    case NVJPEG_STATUS_JPEG_NOT_SUPPORTED: return "JPEG not supported";
    case NVJPEG_STATUS_ALLOCATOR_FAILURE: return "allocation failed";
    case NVJPEG_STATUS_EXECUTION_FAILED: return "execution failed";
    case NVJPEG_STATUS_ARCH_MISMATCH: return "not for this GPU";
    case NVJPEG_STATUS_INTERNAL_ERROR: return "internal error";
    case NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED: return "not implemented";
    case NVJPEG_STATUS_INCOMPLETE_BITSTREAM: return "incomplete bitstream";
  }
  return "unknown status";
}

/// Whether the file can be at fault. For all else another decoder is no remedy.
bool may_be_the_file(nvjpegStatus_t status) {
  return status != NVJPEG_STATUS_NOT_INITIALIZED && status != NVJPEG_STATUS_ALLOCATOR_FAILURE &&
         status != NVJPEG_STATUS_ARCH_MISMATCH;
}

constexpr unsigned kStrict = NVJPEG_FLAGS_BITSTREAM_STRICT;
#ifdef NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION
constexpr unsigned kSmooth = NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION;  // of chroma, as libjpeg does
#else
constexpr unsigned kSmooth = 0;
#endif

using Handle = UniqueHandle<nvjpegHandle_t, &nvjpegDestroy>;
using State = UniqueHandle<nvjpegJpegState_t, &nvjpegJpegStateDestroy>;
using Header = UniqueHandle<nvjpegJpegStream_t, &nvjpegJpegStreamDestroy>;
using Params = UniqueHandle<nvjpegDecodeParams_t, &nvjpegDecodeParamsDestroy>;

/// One way of decoding to one format of output.
struct Lane {
  nvjpegHandle_t handle = nullptr;
  bool interleaved = true;  ///< RGB RGB ..., else gray
  State state;
  std::size_t batch = 0;  ///< the state is set up for

  nvjpegOutputFormat_t format() const { return interleaved ? NVJPEG_OUTPUT_RGBI : NVJPEG_OUTPUT_Y; }
  std::size_t channels() const { return interleaved ? 3 : 1; }
};

std::size_t decoded_bytes(const io::JpegInfo& info, std::size_t channels) {
  const std::size_t bytes = static_cast<std::size_t>(info.width) * static_cast<std::size_t>(info.height) * channels;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

struct NvjpegDecoder::Impl {
  /// A file, the lane it takes and where its pixels go.
  struct File {
    std::size_t at;  // in `rows`
    Lane* lane;
    std::uint8_t* pixels = nullptr;
  };

  Context ctx;
  NvjpegMemory memory;
  Handle hardware, software;  // either may be missing
  Header header;
  Params params[2];         // gray, RGB
  std::vector<Lane> lanes;  // hardware gray, hardware RGB, software gray, software RGB
  std::shared_ptr<Storage> pixels;
  bool hardware_works = true;
  nvjpegStatus_t last_status = NVJPEG_STATUS_SUCCESS;
  bool warned = false;

  explicit Impl(const Context& where) : ctx(where), memory(where) {}
  ~Impl();

  void check(nvjpegStatus_t status, const char* call);
  Handle start(nvjpegBackend_t backend);
  void open();
  Lane& lane(bool chip, bool interleaved) { return lanes[(chip ? 0u : 2u) + (interleaved ? 1u : 0u)]; }
  Lane& lane_for(const io::EncodedRow& row, bool interleaved);
  bool on_hardware(const io::EncodedRow& row, bool interleaved);
  nvjpegStatus_t run(Lane& lane, std::span<const io::EncodedRow> rows, std::span<const File> files);
  void run_all(Lane& lane, std::span<const io::EncodedRow> rows, std::span<const File> files,
               std::vector<File>& refused);
  void run_lane(std::span<const io::EncodedRow> rows, std::span<const File> files, std::vector<std::size_t>& refused);
  void place(std::span<const io::EncodedRow> rows, std::span<File> files);
  void write(std::span<const io::EncodedRow> rows, std::span<const File> files, const Tensor& images,
             const std::vector<std::size_t>& refused);
};

NvjpegDecoder::Impl::~Impl() {
  try {
    cuda::synchronize(ctx);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
  lanes.clear();  // before the handles; those before the memory
  for (auto& p : params) p = {};
  header = {};
  hardware = {};
  software = {};
  try {
    cuda::synchronize(ctx);
  } catch (const std::exception&) {  // said above
  }
}

void NvjpegDecoder::Impl::check(nvjpegStatus_t status, const char* call) {
  if (status == NVJPEG_STATUS_SUCCESS) return;
  if (const auto failure = memory.take_failure()) std::rethrow_exception(failure);
  fail(status == NVJPEG_STATUS_ALLOCATOR_FAILURE ? Kind::exhausted : Kind::unsupported,
       concat(call, " failed on ", ctx.device, " (", static_cast<int>(status), ": ", text_of(status),
              "); --decode cpu does without nvJPEG"));
}

Handle NvjpegDecoder::Impl::start(nvjpegBackend_t backend) {
  for (const unsigned flags : {kStrict | kSmooth, kStrict, 0u}) {  // not every backend takes every flag
    auto device = memory.device();
    auto pinned = memory.pinned();
    nvjpegHandle_t handle = nullptr;
    const auto status = nvjpegCreateExV2(backend, &device, &pinned, flags, &handle);
    if (status == NVJPEG_STATUS_SUCCESS) return Handle(handle);
    cudaGetLastError();
    if (status == NVJPEG_STATUS_ALLOCATOR_FAILURE) check(status, "nvjpegCreateExV2");
  }
  return {};
}

void NvjpegDecoder::Impl::open() {
  const char* name = std::getenv("APEX_NVJPEG_BACKEND");
  const std::string wanted = name == nullptr ? "" : name;
  if (!wanted.empty() && wanted != "hardware" && wanted != "gpu" && wanted != "host")
    fail(Kind::argument, concat("APEX_NVJPEG_BACKEND is '", wanted, "', takes hardware, gpu or host"));
  if (wanted.empty() || wanted == "hardware") hardware = start(NVJPEG_BACKEND_HARDWARE);
  if (wanted == "host")
    software = start(NVJPEG_BACKEND_HYBRID);
  else if (wanted != "hardware" || !hardware)
    software = start(NVJPEG_BACKEND_GPU_HYBRID);
  if (wanted == "hardware" && !hardware)
    log_warning("APEX_NVJPEG_BACKEND: this device or its driver offers no hardware decoder; nvJPEG's kernels are used");
  if (!hardware && !software)
    fail(Kind::unsupported,
         concat("nvJPEG does not start on ", ctx.device, "; update the driver, or use --decode cpu"));

  nvjpegHandle_t any = hardware ? hardware.get() : software.get();
  nvjpegJpegStream_t stream = nullptr;
  check(nvjpegJpegStreamCreate(any, &stream), "nvjpegJpegStreamCreate");
  header = Header(stream);
  for (const bool interleaved : {false, true}) {
    nvjpegDecodeParams_t made = nullptr;
    check(nvjpegDecodeParamsCreate(any, &made), "nvjpegDecodeParamsCreate");
    params[interleaved ? 1 : 0] = Params(made);
    check(nvjpegDecodeParamsSetOutputFormat(made, interleaved ? NVJPEG_OUTPUT_RGBI : NVJPEG_OUTPUT_Y),
          "nvjpegDecodeParamsSetOutputFormat");
  }
  for (const auto& handle : {hardware.get(), software.get()})
    for (const bool interleaved : {false, true}) {
      Lane lane;
      lane.handle = handle;
      lane.interleaved = interleaved;
      if (handle != nullptr) {
        nvjpegJpegState_t state = nullptr;
        check(nvjpegJpegStateCreate(handle, &state), "nvjpegJpegStateCreate");
        lane.state = State(state);
      }
      lanes.push_back(std::move(lane));
    }
}

bool NvjpegDecoder::Impl::on_hardware(const io::EncodedRow& row, bool interleaved) {
  if (!hardware || !hardware_works) return false;
  int not_supported = 1;
  return nvjpegJpegStreamParseHeader(hardware.get(), row.bytes.data(), row.bytes.size(), header.get()) ==
             NVJPEG_STATUS_SUCCESS &&
         nvjpegDecodeBatchedSupportedEx(hardware.get(), header.get(), params[interleaved ? 1 : 0].get(),
                                        &not_supported) == NVJPEG_STATUS_SUCCESS &&
         not_supported == 0;
}

Lane& NvjpegDecoder::Impl::lane_for(const io::EncodedRow& row, bool interleaved) {
  return lane(on_hardware(row, interleaved) || !software, interleaved);
}

nvjpegStatus_t NvjpegDecoder::Impl::run(Lane& lane, std::span<const io::EncodedRow> rows, std::span<const File> files) {
  if (lane.batch != files.size()) {
    lane.batch = 0;
    check(
        nvjpegDecodeBatchedInitialize(lane.handle, lane.state.get(), static_cast<int>(files.size()), 1, lane.format()),
        "nvjpegDecodeBatchedInitialize");
    lane.batch = files.size();
  }
  std::vector<const unsigned char*> data;
  std::vector<std::size_t> sizes;
  std::vector<nvjpegImage_t> out;
  for (const auto& file : files) {
    const auto& row = rows[file.at];
    data.push_back(row.bytes.data());
    sizes.push_back(row.bytes.size());
    nvjpegImage_t image{};
    image.channel[0] = file.pixels;
    image.pitch[0] = static_cast<std::size_t>(row.info.width) * lane.channels();
    out.push_back(image);
  }
  const auto status =
      nvjpegDecodeBatched(lane.handle, lane.state.get(), data.data(), sizes.data(), out.data(), cuda::stream_of(ctx));
  if (status == NVJPEG_STATUS_SUCCESS) return status;
  lane.batch = 0;  // the state has to be set up anew
  if (!may_be_the_file(status)) check(status, "nvjpegDecodeBatched");
  cudaGetLastError();  // of no meaning any more; an error of the device itself comes again
  return status;
}

/// nvJPEG gives one answer for all: where it is no, halves find the file.
void NvjpegDecoder::Impl::run_all(Lane& lane, std::span<const io::EncodedRow> rows, std::span<const File> files,
                                  std::vector<File>& refused) {
  if (files.empty()) return;
  const auto status = run(lane, rows, files);
  if (status == NVJPEG_STATUS_SUCCESS) return;
  if (files.size() > 1) {
    const std::size_t half = files.size() / 2;
    run_all(lane, rows, files.first(half), refused);
    run_all(lane, rows, files.subspan(half), refused);
    return;
  }
  last_status = status;
  refused.push_back(files.front());
}

/// Files of one lane. What the chip's decoder refuses is tried by nvJPEG's kernels before it is the CPU's.
void NvjpegDecoder::Impl::run_lane(std::span<const io::EncodedRow> rows, std::span<const File> files,
                                   std::vector<std::size_t>& refused) {
  constexpr std::size_t kEnoughToJudge = 8;
  Lane& first = *files.front().lane;
  std::vector<File> left;
  run_all(first, rows, files, left);
  if (first.handle == hardware.get() && software && !left.empty()) {
    if (left.size() == files.size() && left.size() >= kEnoughToJudge) {
      hardware_works = false;
      log_warning(concat("the hardware JPEG decoder of ", ctx.device, " decodes nothing (", text_of(last_status),
                         "); nvJPEG's kernels do it from here on"));
    }
    std::vector<File> again;
    run_all(lane(false, first.interleaved), rows, left, again);
    left = std::move(again);
  }
  for (const auto& file : left) refused.push_back(file.at);
  if (left.empty() || warned) return;
  log_warning(concat("nvJPEG refused a picture (", text_of(last_status),
                     "); the CPU decodes it, and others like it without a further word"));
  warned = true;
}

/// Gives each file its part of the memory for decoded pixels, which grows to the largest round so far.
void NvjpegDecoder::Impl::place(std::span<const io::EncodedRow> rows, std::span<File> files) {
  std::size_t total = 0;
  for (const auto& file : files) total += decoded_bytes(rows[file.at].info, file.lane->channels());
  if (pixels == nullptr || pixels->bytes() < total) {
    const StreamGuard guard(ctx);
    pixels.reset();
    pixels = Storage::allocate(total + total / 4, ctx.device);
  }
  auto* next = static_cast<std::uint8_t*>(pixels->data());
  for (auto& file : files) {
    file.pixels = next;
    next += decoded_bytes(rows[file.at].info, file.lane->channels());
  }
}

void NvjpegDecoder::Impl::write(std::span<const io::EncodedRow> rows, std::span<const File> files, const Tensor& images,
                                const std::vector<std::size_t>& refused) {
  std::vector<kernels::ImageWindow> windows;
  for (const auto& file : files) {
    if (std::find(refused.begin(), refused.end(), file.at) != refused.end()) continue;
    const auto& row = rows[file.at];
    const auto& p = row.placement;
    const auto channels = static_cast<std::int64_t>(file.lane->channels());
    ConstView image;
    image.data = file.pixels;
    image.dtype = DType::u8;
    image.device = ctx.device;
    image.sizes = {images.size(1), row.info.height, row.info.width};
    image.strides = {file.lane->interleaved ? 1 : 0, row.info.width * channels, channels};  // gray repeats its channel
    image.present = true;
    windows.push_back({.image = image,
                       .row = row.row,
                       .box_left = p.box.left,
                       .box_top = p.box.top,
                       .box_width = p.box.width,
                       .box_height = p.box.height,
                       .resized_width = p.resized_width,
                       .resized_height = p.resized_height,
                       .left = p.left,
                       .top = p.top,
                       .flip = p.flip});
  }
  kernels::image_resize(ctx, images.view(), windows);
}

NvjpegDecoder::NvjpegDecoder(const Context& ctx) : impl_(std::make_unique<Impl>(ctx)) { impl_->open(); }
NvjpegDecoder::~NvjpegDecoder() = default;

bool NvjpegDecoder::takes(const io::JpegInfo& info) noexcept {
  return info.gray || (info.chroma_x >= 1 && info.chroma_x <= 2 && info.chroma_y >= 1 && info.chroma_y <= 2);
}

std::string NvjpegDecoder::version() {
  int major = 0, minor = 0, patch = 0;
  nvjpegGetProperty(MAJOR_VERSION, &major);
  nvjpegGetProperty(MINOR_VERSION, &minor);
  nvjpegGetProperty(PATCH_LEVEL, &patch);
  return concat("nvJPEG ", major, '.', minor, '.', patch);
}

std::vector<std::size_t> NvjpegDecoder::decode(std::span<const io::EncodedRow> rows, const Tensor& images,
                                               const std::function<void()>& may_write) {
  Impl& self = *impl_;
  std::vector<Impl::File> files;
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const bool interleaved = images.size(1) == 3 && !rows[k].info.gray;
    files.push_back({.at = k, .lane = &self.lane_for(rows[k], interleaved)});
  }
  // Files of a lane lie together, in the order of the batch.
  std::stable_sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.lane < b.lane; });
  std::vector<std::size_t> refused;
  bool first = true;
  for (std::size_t begin = 0; begin < files.size();) {
    std::size_t end = begin, bytes = 0;
    while (end < files.size()) {
      const std::size_t more = decoded_bytes(rows[files[end].at].info, files[end].lane->channels());
      if (end > begin && bytes + more > kMostBytes) break;
      bytes += more;
      ++end;
    }
    const std::span round(files.data() + begin, end - begin);
    self.place(rows, round);
    for (std::size_t a = 0, b = 0; a < round.size(); a = b) {
      while (b < round.size() && round[b].lane == round[a].lane) ++b;
      self.run_lane(rows, round.subspan(a, b - a), refused);
    }
    if (first) may_write();
    first = false;
    self.write(rows, round, images, refused);
    begin = end;
  }
  if (first) may_write();
  std::sort(refused.begin(), refused.end());
  return refused;
}

}  // namespace apex::train

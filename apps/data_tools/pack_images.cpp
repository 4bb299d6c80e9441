// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
//
// pack_images: one HDF5 file from a folder of pictures. Options and assembly; the packing is apex::io::write_pack.
#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "apex/core/error.hpp"
#include "apex/core/program.hpp"
#include "apex/core/standard_streams.hpp"
#include "apex/io/data/pack.hpp"
#include "apex/io/log/progress.hpp"

namespace {

namespace po = boost::program_options;
namespace io = apex::io;

constexpr const char* kSummary =
    "Usage: pack_images [OPTIONS] SOURCE PACK.h5\n\n"
    "Packs a data set into one HDF5 file, which spares a parallel file system the millions of small files and is read\n"
    "by offset. SOURCE is a folder with train/ and val/ (or class folders, see --val-split), a folder of IDX files, "
    "or\n"
    "another pack. Without --resize and --decoded every picture keeps its bytes, so training on PACK.h5 gives what\n"
    "training on SOURCE gives.\n";

struct Options {
  std::string source, pack, class_names, progress = "auto", bad_sample = "error";
  int channels = 0;
  double val_split = 0;
  std::uint64_t seed = 0;
  io::PackOptions packing;
};

po::options_description describe(Options& o) {
  auto& p = o.packing;
  po::options_description out("Options");
  auto add = out.add_options();
  add("help,h", "show this text");
  add("version", "show the version");
  add("resize", po::value(&p.resize)->value_name("N"),
      "shorter side to N pixels where it is longer, stored as JPEG (with --decoded: then the middle N x N)");
  add("quality", po::value(&p.quality)->value_name("Q")->default_value(p.quality),
      "of JPEG written by --resize, 1 to 100");
  add("decoded", po::bool_switch(&p.decoded), "store pixels instead of JPEG or PNG; for small pictures");
  add("channels", po::value(&o.channels)->value_name("C"), "1 or 3; default: what SOURCE has, 3 for folders");
  add("val-split", po::value(&o.val_split)->value_name("F"),
      "set this part of each class aside for validation, as imagenet_train would; for a SOURCE without val/");
  add("seed", po::value(&o.seed)->value_name("N")->default_value(o.seed), "of --val-split");
  add("class-names", po::value(&o.class_names)->value_name("FILE"), "IDX: names of the classes, one a line");
  add("bad-sample", po::value(&o.bad_sample)->value_name("error|skip")->default_value(o.bad_sample),
      "stop at a damaged picture, or name it and leave it out");
  add("no-check", "do not decode pictures that keep their bytes; damaged ones are left to the trainer's --bad-sample");
  add("workers,j", po::value(&p.workers)->value_name("N"), "threads; default: from the affinity mask");
  add("force", po::bool_switch(&p.overwrite), "replace PACK.h5 if it exists");
  add("progress", po::value(&o.progress)->value_name("auto|bar|lines|none")->default_value(o.progress),
      "how to show it");
  return out;
}

[[noreturn]] void usage(const std::string& text) { throw po::error(text); }

/// Long names may be written with `_` for `-`.
std::vector<std::string> arguments_of(int argc, char** argv) {
  std::vector<std::string> out;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const auto name_end = word.begin() + static_cast<long>(std::min(word.find('='), word.size()));
    if (word.starts_with("--")) std::replace(word.begin(), name_end, '_', '-');
    out.push_back(std::move(word));
  }
  return out;
}

/// False when only help or the version was asked for.
bool parse(int argc, char** argv, Options& o) {
  const po::options_description visible = describe(o);
  std::vector<std::string> places;
  po::options_description all;
  all.add(visible).add_options()("place", po::value(&places));
  po::positional_options_description positional;
  positional.add("place", -1);
  const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  po::variables_map given;
  po::store(po::command_line_parser(arguments_of(argc, argv)).options(all).positional(positional).style(style).run(),
            given);
  if (given.count("help")) {
    std::cout << kSummary << '\n' << visible;
    return false;
  }
  if (given.count("version")) {
    std::cout << apex::version_text("pack_images");
    return false;
  }
  po::notify(given);
  if (places.size() != 2) usage(apex::concat("needs SOURCE and PACK.h5, got ", places.size(), " arguments"));
  o.source = places[0];
  o.pack = places[1];
  o.packing.check = given.count("no-check") == 0;
  if (o.bad_sample != "error" && o.bad_sample != "skip") usage("--bad-sample takes error or skip, not " + o.bad_sample);
  o.packing.skip_bad = o.bad_sample == "skip";
  if (!io::parse_progress_mode(o.progress)) usage("--progress takes auto, bar, lines or none, not " + o.progress);
  if (given.count("resize") && o.packing.resize < 1) usage("--resize must be at least 1");
  if (given.count("channels") && o.channels != 1 && o.channels != 3) usage("--channels takes 1 or 3");
  if (given.count("workers") && o.packing.workers < 0) usage("--workers must not be negative");
  if (given.count("val-split") && !(o.val_split > 0 && o.val_split < 1)) usage("--val-split must lie between 0 and 1");
  return true;
}

void pack(Options& o) {
  const io::DatasetPair pair = io::open_dataset(o.source, {.channels = o.channels,
                                                           .val_split = o.val_split,
                                                           .seed = o.seed,
                                                           .require_validation = false,
                                                           .class_names_file = o.class_names});
  if (!pair.warning.empty()) apex::log_warning(pair.warning);
  io::Progress progress({.mode = *io::parse_progress_mode(o.progress)});
  o.packing.progress = [&](std::int64_t done, std::int64_t total) {
    if (progress.due(done, total)) progress.update(done, total, "pictures packed");
  };
  const io::PackResult result = io::write_pack(o.pack, pair, o.packing);
  progress.line(apex::concat(o.pack, ": ", result.train_samples, " pictures for training, ", result.validation_samples,
                             " for validation, of ", pair.train->class_names().size(), " classes; ", result.skipped,
                             " left out; ", result.bytes, " bytes"));
}

int report(int code, const std::string& text) {
  std::cerr << "pack_images: " << text << '\n';
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  apex::fill_standard_streams();
  try {
    Options options;
    if (!parse(argc, argv, options)) return apex::finish_output("pack_images", apex::exit_code::kOk);
    pack(options);
    return apex::exit_code::kOk;
  } catch (const po::error& error) {
    return report(apex::exit_code::kUsage, apex::concat(error.what(), "; see pack_images --help"));
  } catch (const apex::Error& error) {
    return report(apex::exit_code_of(error.kind()), error.what());
  } catch (const std::bad_alloc&) {
    return report(apex::exit_code::kMemory, "out of memory; try fewer --workers");
  } catch (const std::exception& error) {
    return report(apex::exit_code::kInternal, error.what());
  }
}

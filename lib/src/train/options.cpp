// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "apex/train/options.hpp"

#include <charconv>
#include <cmath>

#include "apex/core/device.hpp"
#include "apex/core/dtype.hpp"
#include "apex/core/error.hpp"

namespace apex::train {

CheckpointInterval parse_interval(const std::string& text) {
  CheckpointInterval out;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out.count);
  const std::string unit(error == std::errc{} ? end : text.data());
  out.epochs = unit == "epochs" || unit == "epoch";
  const bool known = out.epochs || unit.empty() || unit == "steps" || unit == "step";
  if (error != std::errc{} || out.count < 0 || !known)
    throw UsageError(
        concat("--checkpoint-every: '", text, "' is not a count of steps (500, 500steps) or epochs (2epochs)"));
  return out;
}

double loss_scale_of(const TrainOptions& o) {
  if (o.loss_scale.empty()) return o.dtype == "f16" ? 1024 : 1;
  double scale = 0;
  const char* last = o.loss_scale.data() + o.loss_scale.size();
  const auto [end, error] = std::from_chars(o.loss_scale.data(), last, scale);
  if (error != std::errc{} || end != last || !(scale > 0) || std::isinf(scale))
    throw UsageError(concat("--loss-scale: '", o.loss_scale, "' is not a number above 0 (dynamic is not there yet)"));
  return scale;
}

void declare(OptionSet& set, TrainOptions& o) {
  set.heading("Training");
  set.integer("epochs", o.epochs, "passes over the training set", 0, 1'000'000);
  set.integer("start-epoch", o.start_epoch, "count epochs from here (resuming sets it)", 0, 1'000'000);
  set.integer("batch-size|b,b", o.batch_size, "samples per process and micro-step", 1);
  set.integer("accumulate", o.accumulate, "micro-steps per optimizer step; gradients are reduced in the last", 1);
  set.integer("max-steps", o.max_steps, "end after this many optimizer steps in all; 0: no limit", 0);
  set.number("lr|learning-rate", o.lr, "learning rate for 256 samples a step; scaled by the global batch / 256", 0);
  set.number("momentum", o.momentum, "momentum of SGD", 0, 1);
  set.number("weight-decay|wd", o.weight_decay, "weight decay", 0);
  set.integer("seed", o.seed, "the one seed: initial weights, order of samples, augmentation", 0);
  set.flag("evaluate,e", o.evaluate, "validate once and end");
  set.text("dtype", o.dtype,
           "f64, f32, bf16 or f16: type of weights and arithmetic; 16-bit weights have f32 masters and f32 batch norm");

  set.heading("Data");
  set.integer("workers,j", o.workers, "threads that read and decode, per process", 0, 1024);
  set.choice("bad-sample", o.bad_sample, {"error", "skip", "black"},
             "what to do about a sample that cannot be decoded");
  set.text("log-samples", o.log_samples, "write the sample ids of each step to PREFIX.rank<r>.txt");

  set.heading("Devices and precision");
  set.text("device", o.device, "auto, cpu, cuda or cuda:N");
  set.integer("threads", o.threads, "CPU threads per process; 0: its share of the node's cores", 0, 4096);
  set.flag("deterministic", o.deterministic, "bit-identical repeats on any machine of the same kind");
  set.flag("cuda-graph", o.cuda_graph, "capture the whole step as a CUDA graph");
  set.flag("tf32", o.tf32, "let f32 convolutions and products on a GPU round their inputs to 10 bits of mantissa");
  set.text(
      "plan-cache", o.plan_cache,
      "file that keeps the GPU plans timed for each shape; auto: in ~/.cache/apex; none (also with --deterministic)");
  set.choice("opt-level", o.opt_level, {"O0", "O1", "O2", "O3", "O4", "O5"}, "mixed precision of apex.amp");
  set.text("keep-batchnorm-fp32", o.keep_batchnorm_fp32, "override of the opt level: True or False");
  set.text("loss-scale", o.loss_scale, "what the loss is multiplied by; default 1024 for f16, else 1");
  set.flag("sync-bn", o.sync_bn, "normalise over the batches of all ranks");

  set.heading("Checkpoints");
  set.text("checkpoint-dir", o.checkpoint_dir, "where step_<n>.h5, LATEST and BEST are kept");
  set.text("checkpoint-every", o.checkpoint_every, "N, Nsteps or Nepochs; 0: only when a signal asks");
  set.integer("keep", o.keep, "checkpoints to keep besides the best; 0: all", 0);
  set.choice("verify-checkpoint", o.verify_checkpoint, {"full", "sample", "none"},
             "read back after writing; on a resume all is checked first, with none only what is read");
  set.choice("checkpoint-failure", o.checkpoint_failure, {"stop", "warn"},
             "what a checkpoint that cannot be written does to the run; the last one of a run always stops it");
  set.text("resume", o.resume,
           "a checkpoint file, a directory of them, auto (the newest of the checkpoint directory, if it has any) or "
           "best (the one with the best validation)");

  set.heading("Cluster");
  set.choice("signal", o.signal, {"USR1", "USR2", "TERM", "none"}, "the signal that asks for a checkpoint and an end");
  set.integer("requeue-exit-code", o.requeue_exit_code, "exit code after such an end", 0, 255);
  set.number("timeout", o.timeout, "seconds any wait for another rank may take", 0.1);
  set.integer("expect-ranks", o.expect_ranks, "stop unless MPI started this many; 0: do not check", 0);
  set.flag("allow-gpu-sharing", o.allow_gpu_sharing, "let two ranks use one GPU");
  set.integer("local-rank", o.local_rank, "rank on this node as the launcher sees it; checked against MPI's", -1);
  set.integer("message-size", o.message_size, "least elements of a gradient bucket (Apex's rule); 0: --bucket-cap-mb",
              0);
  set.number("bucket-cap-mb", o.bucket_cap_mb, "most MiB of a gradient bucket", 0.001);

  set.heading("Output");
  set.integer("print-freq,p", o.print_freq, "steps between progress lines", 1);
  set.choice("progress", o.progress, {"auto", "bar", "lines", "none"}, "one line that renews itself, or whole lines");
  set.text("metrics", o.metrics,
           "file of one JSON record a step, in the checkpoint directory unless a path; none: off");
  set.text("tensorboard", o.tensorboard, "directory for TensorBoard event files");
  set.integer("prof", o.prof, "time the phases of 10 steps from this one on, print them, end", -1);
}

void check(const OptionSet& set, const TrainOptions& o) {
  if (set.was_given("resume") && o.resume.empty())
    throw UsageError("--resume: the value is empty; leave the option out to start anew");
  parse_interval(o.checkpoint_every);
  const auto dtype = parse_dtype(o.dtype);
  if (!dtype || !is_floating(*dtype))
    throw UsageError(concat("--dtype: '", o.dtype, "' is none of f64, f32, bf16, f16"));
  const auto device = o.device == "auto" ? kCpu : parse_device(o.device);
  if (!device) throw UsageError(concat("--device: '", o.device, "' is none of auto, cpu, cuda, cuda:N"));
  if (device->is_cuda() && !has_cuda) throw UsageError("--device: this build has no CUDA backend; use cpu");
  if (o.cuda_graph && device->is_cpu() && o.device != "auto")
    throw UsageError("--cuda-graph needs a GPU; --device cpu has none");
  if (o.cuda_graph && !has_cuda) throw UsageError("--cuda-graph: this build has no CUDA backend");
  if (o.tf32 && (!has_cuda || o.device == "cpu")) throw UsageError("--tf32 is for a GPU; this run has none");
  if (o.opt_level != "O0") throw UsageError(concat("--opt-level: ", o.opt_level, " is not there yet; only O0 is"));
  if (!o.keep_batchnorm_fp32.empty() && o.keep_batchnorm_fp32 != "None")
    throw UsageError("--keep-batchnorm-fp32: O0 casts nothing, so it has no such override");
  const double scale = loss_scale_of(o);
  if (scale != 1 && dtype != DType::f16)
    throw UsageError(concat("--loss-scale: ", o.loss_scale, " is for --dtype f16; ", o.dtype, " needs none"));
  if (o.plan_cache.empty()) throw UsageError("--plan-cache: a file, auto or none is needed");
  if (o.plan_cache != "auto" && o.plan_cache != "none" && (!has_cuda || o.device == "cpu"))
    throw UsageError("--plan-cache keeps plans of a GPU; this run has none");
  if (o.sync_bn) throw UsageError("--sync_bn: synchronised batch norm is not there yet");
  if (set.was_given("message-size") && set.was_given("bucket-cap-mb"))
    throw UsageError("--message-size and --bucket-cap-mb exclude each other");
  if (o.checkpoint_dir.empty()) throw UsageError("--checkpoint-dir: a directory is needed");
  if (o.start_epoch > 0 && o.start_epoch >= o.epochs)
    throw UsageError(concat("--start-epoch: ", o.start_epoch, " is not below --epochs ", o.epochs));
  if (o.evaluate && o.max_steps > 0)
    throw UsageError("--evaluate makes no training steps, so --max-steps has no meaning");
}

}  // namespace apex::train

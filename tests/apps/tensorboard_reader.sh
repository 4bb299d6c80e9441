#!/usr/bin/env bash
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
# tensorboard_reader.sh IMAGENET_TRAIN [PYTHON]: TensorBoard's own reader finds every step once, with the values of
# metrics.jsonl, after a training that was interrupted and went on; the configuration; and the hyper-parameters.
set -uo pipefail
train=$1 python=''
for each in ${2:+"$2"} python3 /usr/bin/python3; do
  "$each" -c 'import tensorboard' 2>/dev/null && python=$each && break
done
if [[ -z $python ]]; then
  echo "no Python here has TensorBoard: skipped"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run() {  # STEPS
  "$train" synthetic --synthetic-size 64 --arch resnet20 --image-size 8 --channels 1 -b 8 --epochs 3 --max-steps "$1" \
    --lr-schedule one-cycle --checkpoint-every 10 --checkpoint-dir "$folder/run" --tensorboard "$folder/board" \
    --resume auto --device cpu --progress none >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
}
run 14
rm "$folder/run/step_00000014.h5" "$folder/run/LATEST"
run 20
"$python" - "$folder/board" "$folder/run/metrics.jsonl" <<'PY'
import json
import struct
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

board = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
board.Reload()
records = [json.loads(line) for line in open(sys.argv[2])]


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def scalars(tag):
    try:
        return [(e.step, e.value) for e in board.Scalars(tag)]
    except KeyError:  # later versions read scalars into tensors
        return [(e.step, e.tensor_proto.float_val[0]) for e in board.Tensors(tag)]


for tag, kind, field in (("train/loss", "train", "loss"), ("train/lr", "train", "lr"), ("validate/loss", "validate", "loss")):
    wanted = [(r["step"], f32(r[field])) for r in records if r["kind"] == kind]
    assert scalars(tag) == wanted, (tag, scalars(tag), wanted)
assert len(scalars("train/loss")) == 20
texts = [e.tensor_proto.string_val[0].decode() for e in board.Tensors("configuration")]
assert "| max-steps | 20 | command line |" in texts[-1], texts
content = board.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
assert start.hparams["arch"].string_value == "resnet20", start
assert start.hparams["batch-size"].number_value == 8, start
content = board.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
assert plugin_data_pb2.HParamsPluginData.FromString(content).session_end_info.status == 1
print("TensorBoard reads", len(scalars("train/loss")), "steps,", len(start.hparams), "hyper-parameters")
PY

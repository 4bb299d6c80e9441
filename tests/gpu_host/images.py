#!/usr/bin/env python3
# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
"""Pictures for timing the reading of data, and the speed of the runs that read them (run.sh bench-data).

images.py write FOLDER [--count N] [--copies C]   N JPEGs of 256 x 256 in FOLDER/all/<class>, each C times (hard links)
images.py rate FILE BASE                          images/s from metrics.jsonl, and as a share of those in BASE, the
                                                  JSON of apex_bench step
"""
import argparse
import json
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor

SIDE, CLASSES, WARM_UP = 256, 32, 15


def write_one(job):
    """Coarse shapes, finer ones and a little grain: about as many bytes as a photograph of this size."""
    from PIL import Image
    path, number, copies = job
    source = random.Random(number)
    picture = Image.new("RGB", (SIDE, SIDE))
    for side, share in ((4, 1.0), (16, 0.5), (64, 0.3), (SIDE, 0.06)):
        layer = Image.frombytes("RGB", (side, side), source.randbytes(3 * side * side))
        picture = Image.blend(picture, layer.resize((SIDE, SIDE), Image.BICUBIC), share)
    picture.save(f"{path}.jpg", quality=90)
    for copy in range(1, copies):
        os.link(f"{path}.jpg", f"{path}_{copy}.jpg")
    return os.path.getsize(f"{path}.jpg")


def write(folder, count, copies):
    try:
        import PIL  # noqa: F401
    except ImportError:
        sys.exit("apex: python3 has no Pillow")
    jobs = []
    for number in range(count):
        place = os.path.join(folder, "all", f"class{number % CLASSES:02}")
        os.makedirs(place, exist_ok=True)
        jobs.append((os.path.join(place, f"picture{number:06}"), number, copies))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        sizes = list(pool.map(write_one, jobs, chunksize=16))
    print(f"{count} pictures, {sum(sizes) / count / 1024:.1f} KiB each, {copies} times")


def speed(path):
    """Images/s, and the share of time waiting, over the steps after the first, which choose plans and capture."""
    with open(path, encoding="utf-8") as lines:
        steps = [r for r in map(json.loads, lines) if r.get("kind") == "train" and r["step"] > WARM_UP]
    if not steps:
        sys.exit(f"apex: {path} has no steps beyond {WARM_UP}")
    seconds = sum(r["seconds"] for r in steps)
    return sum(r["samples"] for r in steps) / seconds, sum(r["data_wait"] for r in steps) / seconds


def rate(path, base):
    images, waiting = speed(path)
    with open(base, encoding="utf-8") as file:
        synthetic = json.load(file)["images_per_s"]
    print(f"{images:.0f} images/s, {100 * images / synthetic:.1f}% of synthetic ({synthetic:.0f}), "
          f"{100 * waiting:.1f}% of the time waiting for data")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("write")
    one.add_argument("folder")
    one.add_argument("--count", type=int, default=1536)
    one.add_argument("--copies", type=int, default=1)
    two = commands.add_parser("rate")
    two.add_argument("file")
    two.add_argument("base")
    given = parser.parse_args()
    if given.command == "write":
        write(given.folder, given.count, given.copies)
    else:
        rate(given.file, given.base)


if __name__ == "__main__":
    main()

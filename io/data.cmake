# SPDX-FileCopyrightText: the apex authors
# SPDX-License-Identifier: BSD-3-Clause
target_sources(apex_io PRIVATE
  src/data/dataset.cpp
  src/data/file.cpp
  src/data/folder.cpp
  src/data/hdf5.cpp
  src/data/hdf5_lock.cpp
  src/data/idx.cpp
  src/data/loader.cpp
  src/data/open.cpp
  src/data/pack.cpp
  src/data/pack_seal.cpp
  src/data/pack_write.cpp
  src/data/sampler.cpp
  src/data/synthetic.cpp
  src/image/image.cpp
  src/image/jpeg.cpp
  src/image/png.cpp
  src/image/resize.cpp
  src/image/transform.cpp
  src/log/metrics.cpp
  src/log/progress.cpp
  src/log/tensorboard.cpp
)

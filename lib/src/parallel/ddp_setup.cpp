// SPDX-FileCopyrightText: the apex authors
// SPDX-License-Identifier: BSD-3-Clause
#include "ddp_setup.hpp"

#include <cmath>
#include <sstream>

#include "apex/autograd.hpp"

namespace apex::parallel::detail {

void check_options(const DistributedDataParallelOptions& o) {
  const auto refuse = [](const std::string& why) { fail(Kind::argument, "DistributedDataParallel: " + why); };
  const DistributedDataParallelOptions standard;
  if (o.shared_param) refuse("shared_param is withdrawn; shared parameters work without it");
  if (o.gradient_average_split_factor) refuse("gradient_average_split_factor is now called gradient_predivide_factor");
  if (!(o.gradient_predivide_factor > 0) || !std::isfinite(o.gradient_predivide_factor))
    refuse(concat("gradient_predivide_factor ", o.gradient_predivide_factor, " is not a positive number"));
  if (o.message_size < 1) refuse(concat("message_size ", o.message_size, " is not positive"));
  if (o.num_allreduce_streams < 1)
    refuse(concat("num_allreduce_streams ", o.num_allreduce_streams, " is not positive"));
  if (o.bucket_cap_mb) {
    if (!(*o.bucket_cap_mb > 0) || !std::isfinite(*o.bucket_cap_mb))
      refuse(concat("bucket_cap_mb ", *o.bucket_cap_mb, " is not a positive number"));
    if (!(o.first_bucket_kb > 0) || !std::isfinite(o.first_bucket_kb))
      refuse(concat("first_bucket_kb ", o.first_bucket_kb, " is not a positive number"));
    if (o.message_size != standard.message_size) refuse("give message_size or bucket_cap_mb, not both");
  }
  if (o.delay_allreduce && !o.allreduce_trigger_params.empty())
    refuse("allreduce_trigger_params has no meaning with delay_allreduce");
  if (o.delay_allreduce && o.num_allreduce_streams > 1)
    refuse("num_allreduce_streams > 1 has no meaning with delay_allreduce");
  if (o.allreduce_communicators) {
    const auto n = static_cast<std::size_t>(o.num_allreduce_streams);
    if (n < 2) refuse("allreduce_communicators needs num_allreduce_streams > 1");
    if (o.allreduce_communicators->groups.size() != n || o.allreduce_communicators->streams.size() != n)
      refuse(concat("allreduce_communicators has ", o.allreduce_communicators->groups.size(), " groups and ",
                    o.allreduce_communicators->streams.size(), " streams, but num_allreduce_streams is ", n));
  }
}

void check_one_device(const std::vector<nn::NamedTensor>& parameters) {
  for (const auto& [name, t] : parameters)
    if (t.device() != parameters.front().tensor.device())
      fail(Kind::argument,
           concat("DistributedDataParallel: parameter '", name, "' is on ", t.device(), ", '", parameters.front().name,
                  "' on ", parameters.front().tensor.device(), "; move the module to one device"));
}

BucketRule bucket_rule(const DistributedDataParallelOptions& o) {
  BucketRule rule{.message_size = o.message_size, .triggers = !o.allreduce_trigger_params.empty()};
  if (o.bucket_cap_mb) {
    rule.cap_bytes = std::max<std::int64_t>(1, std::llround(*o.bucket_cap_mb * 1048576.0));
    rule.first_cap_bytes =
        std::min(rule.cap_bytes, std::max<std::int64_t>(1, std::llround(o.first_bucket_kb * 1024.0)));
  }
  return rule;
}

void check_same_parameters(const std::vector<nn::NamedTensor>& parameters, const dist::ProcessGroup& group) {
  if (group.size() == 1) return;
  std::ostringstream own;
  for (const auto& [name, t] : parameters)
    own << name << ": " << t.dtype() << ' ' << t.sizes() << " strides " << empty_like(t).strides()
        << (requires_grad(t) ? "" : " frozen") << '\n';
  const std::string theirs = group.broadcast(own.str(), 0, "parameter list");
  std::istringstream here(own.str()), there(theirs);
  std::string difference;
  for (std::string a, b; difference.empty();) {
    const bool more_here = static_cast<bool>(std::getline(here, a)),
               more_there = static_cast<bool>(std::getline(there, b));
    if (!more_here && !more_there) break;
    if (!more_here) a = "no further parameter";
    if (!more_there) b = "no further parameter";
    if (a != b) difference = concat("the model differs from rank 0's: here '", a, "', there '", b, "'");
  }
  group.agree(difference.empty(), concat("DistributedDataParallel: ", difference));
}

std::vector<dist::ProcessGroup> bucket_groups(const dist::ProcessGroup& group,
                                              const DistributedDataParallelOptions& o) {
  std::vector<dist::ProcessGroup> groups;
  if (o.allreduce_communicators) {
    for (const auto& g : o.allreduce_communicators->groups) groups.push_back(g.channel(dist::Purpose::ddp));
    return groups;
  }
  groups.push_back(group);
  for (int i = 1; i < o.num_allreduce_streams; ++i)
    groups.push_back(group.dup(concat(group.label(), ".ddp", i)).channel(dist::Purpose::ddp));
  return groups;
}

}  // namespace apex::parallel::detail

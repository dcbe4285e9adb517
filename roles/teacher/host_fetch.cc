#include "roles/teacher/host_fetch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <vector>

#include "base/hash.h"
#include "base/sizes.h"
#include "parallel/vote.h"

namespace retort::roles {
namespace {

// Returns a number for the host of each rank, which differs where the names do.
std::vector<int64_t> hosts_of(parallel::Group& group, const std::string& host) {
  const int64_t own = std::stoll(sha256_hex(host).substr(0, 15), nullptr, 16);
  const at::Tensor all = group.all_gather(at::full({1}, own, at::kLong));
  const int64_t* numbers = all.const_data_ptr<int64_t>();
  return {numbers, numbers + all.numel()};
}

int first_on(const std::vector<int64_t>& hosts, int64_t host) {
  int first = 0;
  while (hosts[to_size(first)] != host)
    ++first;
  return first;
}

}  // namespace

at::Tensor fetch_once_a_host(parallel::Group& group, const std::string& host, at::IntArrayRef sizes,
                             const std::function<at::Tensor()>& fetch) {
  if (group.size() == 1) return fetch();

  // A rank that failed on its way here is heard before anybody waits for its message.
  parallel::run_on_all(group, [] {});
  const std::vector<int64_t> hosts = hosts_of(group, host);
  const int64_t own = hosts[to_size(group.rank())];
  const int first = first_on(hosts, own);
  const bool fetches = first == group.rank();
  // Nobody may wait in recv() for a rank whose fetch failed, so all hear how the fetches ended.
  at::Tensor tensor =
      parallel::run_on_all(group, [&] { return fetches ? fetch().contiguous() : at::Tensor(); });

  // The type goes ahead, because only the rank that fetched knows it and the others must allocate.
  at::Tensor type =
      at::full({1}, fetches ? static_cast<int64_t>(tensor.scalar_type()) : 0, at::kLong);
  if (!fetches) {
    group.recv(type, first);
    tensor = at::empty(sizes, static_cast<at::ScalarType>(*type.const_data_ptr<int64_t>()));
    group.recv(tensor, first);
    return tensor;
  }
  std::vector<parallel::Work> sent;
  for (int rank = first + 1; rank < group.size(); ++rank) {
    if (hosts[to_size(rank)] != own) continue;
    sent.push_back(group.send_async(type, rank));
    sent.push_back(group.send_async(tensor, rank));
  }
  for (parallel::Work& work : sent)
    work.wait();
  return tensor;
}

}  // namespace retort::roles

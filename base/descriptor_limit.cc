#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace retort {

uint64_t raise_descriptor_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0)
    throw Error(ErrorCode::kUnavailable,
                std::string("the limit of open files cannot be read: ") + std::strerror(errno));
  if (files.rlim_cur == files.rlim_max) return files.rlim_cur;

  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) != 0)
    throw Error(ErrorCode::kUnavailable,
                std::string("the limit of open files cannot be raised: ") + std::strerror(errno))
        .with("limit", files.rlim_max);
  return files.rlim_cur;
}

}  // namespace retort

// Names of requests at a server.
#include "engines/wire/request_names.h"

#include <gtest/gtest.h>

#include <vector>

namespace retort::engines {
namespace {

// A server may take a name for all that begin with it.
TEST(RequestNames, NoneIsTheBeginningOfAnother) {
  RequestNames names, others;
  EXPECT_NE(names.prefix(), others.prefix());
  std::vector<std::string> given;
  for (int i = 0; i < 120; ++i)
    given.push_back(names.next());
  for (const std::string& one : given)
    for (const std::string& other : given)
      EXPECT_TRUE(&one == &other || !other.starts_with(one)) << one << " " << other;
}

}  // namespace
}  // namespace retort::engines

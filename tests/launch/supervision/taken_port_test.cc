// What is said of a port that another process has.
#include <gtest/gtest.h>

#include "launch/backends/run_store.h"
#include "recipes/document/recipe.h"
#include "rpc/listen_address.h"
#include "tests/support/thrown.h"

namespace retort::launch {
namespace {

TEST(TakenPort, NamesTheKeyThatChoosesAnother) {
  const recipes::Recipe recipe;
  const rpc::RendezvousAccess access{.name = {}, .run = "run", .secret = "do-not-show-this"};
  const rpc::RendezvousServer first = serve_store(recipe, access, "127.0.0.1", 0);
  const Error error =
      test::error_of([&] { serve_store(recipe, access, "127.0.0.1", first.port()); });
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(rpc::is_port_taken(error)) << "`retort join` asks";
  const std::string message = error.message();
  EXPECT_TRUE(message.starts_with("launch.rendezvous.port: cannot listen on the control port"))
      << message;
  for (const std::string& part :
       {"(port " + std::to_string(first.port()) + ")", std::string("or 0, with which")})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

}  // namespace
}  // namespace retort::launch

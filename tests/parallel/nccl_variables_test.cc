// What NCCL is told, by what a run says.
#include "parallel/nccl_variables.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace retort::parallel {
namespace {

using Variables = std::map<std::string, std::string>;

TEST(NcclVariables, NothingIsSetWithoutAReason) {
  EXPECT_EQ(nccl_variables({}), Variables{});
  for (const Layout& layout : {Layout{.tp = 4}, Layout{.pp = 2}, Layout{.dp = 4}})
    EXPECT_EQ(nccl_variables({.interface = "", .layout = layout}), Variables{});
}

TEST(NcclVariables, TheInterfaceIsThatAlone) {
  EXPECT_EQ(nccl_variables({.interface = "eth1"}), (Variables{{"NCCL_SOCKET_IFNAME", "=eth1"}}));
}

TEST(NcclVariables, SumsHaveOneOrderInADeterministicRun) {
  EXPECT_EQ(nccl_variables({.interface = "", .deterministic = true}),
            (Variables{{"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "Simple"}}));
}

TEST(NcclVariables, OverlappingGroupsAreLaunchedInTheHostsOrder) {
  for (const Layout& layout :
       {Layout{.tp = 2, .dp = 2}, Layout{.tp = 4, .pp = 2}, Layout{.pp = 2, .dp = 4}})
    EXPECT_EQ(nccl_variables({.interface = "", .layout = layout}),
              (Variables{{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}));
  EXPECT_EQ(nccl_variables(
                {.interface = "ib0", .deterministic = true, .layout = {.tp = 2, .pp = 2, .dp = 2}}),
            (Variables{{"NCCL_ALGO", "Ring"},
                       {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
                       {"NCCL_PROTO", "Simple"},
                       {"NCCL_SOCKET_IFNAME", "=ib0"}}));
}

}  // namespace
}  // namespace retort::parallel

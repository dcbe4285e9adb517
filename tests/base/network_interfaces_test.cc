// Which address of a host is meant, among interfaces as several machines have them.
#include "base/network_interfaces.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/thrown.h"

namespace retort {
namespace {

using test::code_of;
using test::message_of;

// A node of a cluster: two networks, one interface that is down.
std::vector<InterfaceAddress> node() {
  return {{"lo", "127.0.0.1"},          {"lo", "::1"},
          {"eth0", "10.0.0.7"},         {"eth0", "fd00::7"},
          {"eth0", "fe80::7%eth0"},     {"ib0", "192.168.9.7"},
          {"ib0", "fe80::a%ib0"},       {"eth1", "10.1.0.7", false},
          {"v6only", "fe80::b%v6only"}, {"v6only", "fd00:1::b"}};
}

std::string chosen(std::string_view wanted) { return choose_address(wanted, node()).address; }

TEST(ChooseAddress, AnAddressIsItself) {
  EXPECT_EQ(choose_address("10.0.0.7", node()), (InterfaceAddress{"eth0", "10.0.0.7"}));
  EXPECT_EQ(choose_address("fd00::7", node()).interface, "eth0");
  // Another spelling of the same address.
  EXPECT_EQ(choose_address("fd00:0::7", node()).interface, "eth0");
  EXPECT_EQ(choose_address("::1", node()).interface, "lo");
}

TEST(ChooseAddress, AllOf127BelongsToTheHost) {
  EXPECT_EQ(choose_address("127.0.0.2", node()), (InterfaceAddress{"lo", "127.0.0.2"}));
}

TEST(ChooseAddress, AnInterfaceGivesIPv4BeforeIPv6AndLinkLocalLast) {
  EXPECT_EQ(chosen("eth0"), "10.0.0.7");
  EXPECT_EQ(chosen("v6only"), "fd00:1::b");
  EXPECT_EQ(choose_address("ll", {{"ll", "fe80::b%ll"}}).address, "fe80::b%ll");
}

TEST(ChooseAddress, ASubnetHoldsOneInterface) {
  EXPECT_EQ(chosen("192.168.0.0/16"), "192.168.9.7");
  EXPECT_EQ(chosen("10.0.0.0/29"), "10.0.0.7");
  EXPECT_EQ(chosen("fd00::/64"), "fd00::7");
  EXPECT_EQ(chosen("10.0.0.7/32"), "10.0.0.7");
}

TEST(ChooseAddress, ASubnetThatSeveralInterfacesHaveIsRefused) {
  const auto both = [] { choose_address("0.0.0.0/0", node()); };
  EXPECT_EQ(code_of(both), ErrorCode::kInvalidArgument);
  EXPECT_NE(message_of(both).find("ib0 192.168.9.7"), std::string::npos) << message_of(both);
  // What is down does not count.
  EXPECT_EQ(chosen("10.0.0.0/8"), "10.0.0.7");
}

TEST(ChooseAddress, ErrorsListWhatThereIs) {
  for (const char* missing :
       {"10.0.0.8", "eth7", "172.16.0.0/12", "fd00:2::/64", "eth1", "10.1.0.7", "10.1.0.0/16"}) {
    const auto choose = [&] { choose_address(missing, node()); };
    const std::string message = message_of(choose, ErrorCode::kUnavailable);
    EXPECT_NE(message.find("eth0 10.0.0.7"), std::string::npos) << message;
    EXPECT_NE(message.find("eth1 10.1.0.7 (down)"), std::string::npos) << message;
  }
}

TEST(ChooseAddress, WhatIsNoSubnetIsRefused) {
  for (const char* bad :
       {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8x", "eth0/8", "fd00::/129", "/8"})
    EXPECT_EQ(code_of([&] { choose_address(bad, node()); }), ErrorCode::kInvalidArgument) << bad;
}

TEST(ChooseAddress, NamesOfHostsAreLeftToTheResolver) {
  for (const char* own : {"eth0", "10.0.0.0/8", "10.9.9.9", "fe80::1%eth0"})
    EXPECT_TRUE(is_interface_choice(own, node())) << own;
  EXPECT_FALSE(is_interface_choice("gpu1.example", node()));
}

TEST(OnlyOuterAddress, IsThereWhereTheHostHasOneWayOut) {
  EXPECT_EQ(
      only_outer_address({{"lo", "127.0.0.1"}, {"e", "fe80::1%e"}, {"e", "10.0.0.1"}}).address,
      "10.0.0.1");
  EXPECT_EQ(code_of([] { only_outer_address(node()); }), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of([] { only_outer_address({{"lo", "127.0.0.1"}}); }), ErrorCode::kUnavailable);
}

TEST(Loopback, IsANetworkAndAName) {
  for (const char* own : {"127.0.0.1", "127.9.9.9", "::1", "0:0::1"})
    EXPECT_TRUE(is_loopback_address(own)) << own;
  for (const char* other : {"128.0.0.1", "::2", "localhost", "1::1", ""})
    EXPECT_FALSE(is_loopback_address(other)) << other;
  EXPECT_TRUE(is_loopback_host("localhost"));
}

TEST(ThisHost, HasItsLoopbackAddress) {
  const auto all = interface_addresses();
  EXPECT_EQ(choose_address("127.0.0.1", all).address, "127.0.0.1");
  EXPECT_EQ(address_towards("127.0.0.1", 9), "127.0.0.1");
  EXPECT_EQ(resolve_host("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(code_of([] { resolve_host("no such name"); }), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace retort

// What a c10d::Store promises, asked of c10d's own store and of ours alike.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tests/rpc/rendezvous/store_fixture.h"

namespace retort::rpc::rendezvous::testing {
namespace {

class StoreContract : public ::testing::TestWithParam<std::string> {
 protected:
  std::string get(const std::string& key) { return text(store->get(key)); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) {
    return text(store->compareSet(key, bytes(expected), bytes(desired)));
  }
  // `write` ends a wait for `key` that another client has begun, or begins later.
  void expect_wakes(const std::string& key, const std::function<void()>& write) {
    std::thread reader([&] { EXPECT_NO_THROW(host->connect()->wait({key}, 60s)) << key; });
    write();
    reader.join();
  }

  const std::unique_ptr<StoreHost> host = make_host(GetParam());
  const StorePtr store = host->connect();
};

TEST_P(StoreContract, WhatIsSetIsThere) {
  const std::string binary("v\0\xff w", 5);
  store->set("key", bytes(binary));
  EXPECT_EQ(get("key"), binary);
  store->set("key", bytes("again"));
  EXPECT_EQ(get("key"), "again");
  store->set("text", std::string("as a string"));
  EXPECT_EQ(store->get_to_str("text"), "as a string");
  const std::string large(3 << 20, 'x');
  store->set("large", bytes(large));
  EXPECT_EQ(get("large"), large);
}

TEST_P(StoreContract, ClientsSeeTheSameKeys) {
  const StorePtr other = host->connect();
  store->set("mine", bytes("1"));
  EXPECT_EQ(text(other->get("mine")), "1");
  other->set("yours", bytes("2"));
  EXPECT_EQ(get("yours"), "2");
  EXPECT_EQ(text(store->clone()->get("yours")), "2");
}

TEST_P(StoreContract, NumbersAreDecimalText) {
  EXPECT_EQ(store->add("count", 2), 2);
  EXPECT_EQ(store->add("count", 40), 42);
  EXPECT_EQ(get("count"), "42");
  EXPECT_EQ(store->add("count", -50), -8);
  store->set("given", bytes("7"));
  EXPECT_EQ(store->add("given", 1), 8);
  EXPECT_EQ(store->add("looked at", 0), 0);
}

TEST_P(StoreContract, KeysAreCountedCheckedAndDeleted) {
  const int64_t before = store->getNumKeys();
  store->set("a", bytes("1"));
  store->set("b", bytes("2"));
  EXPECT_EQ(store->getNumKeys(), before + 2);
  EXPECT_TRUE(store->check({"a", "b"}));
  EXPECT_FALSE(store->check({"a", "c"}));
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_FALSE(store->deleteKey("a"));
  EXPECT_FALSE(store->check({"a"}));
  EXPECT_EQ(store->getNumKeys(), before + 1);
}

TEST_P(StoreContract, CompareSet) {
  EXPECT_EQ(compare_set("key", "not there", "new"), "not there");
  EXPECT_FALSE(store->check({"key"}));
  EXPECT_EQ(compare_set("key", "", "first"), "first");
  EXPECT_EQ(compare_set("key", "wrong", "second"), "first");
  EXPECT_EQ(compare_set("key", "first", "second"), "second");
  EXPECT_EQ(get("key"), "second");
}

TEST_P(StoreContract, ExtendedOperations) {
  ASSERT_TRUE(store->hasExtendedApi());
  store->append("list", bytes("a,"));
  store->append("list", bytes("b"));
  EXPECT_EQ(get("list"), "a,b");
  store->multiSet({"x", "y", "z"}, {bytes("1"), bytes("2"), bytes("3")});
  const auto values = store->multiGet({"z", "list", "x", "x"});
  ASSERT_EQ(values.size(), 4u);
  EXPECT_EQ(text(values[0]) + " " + text(values[1]) + " " + text(values[2]), "3 a,b 1");
  EXPECT_EQ(values[3], values[2]);
}

TEST_P(StoreContract, WaitsEndWhenTheKeysCome) {
  expect_wakes("set", [&] { store->set("set", bytes("1")); });
  expect_wakes("added", [&] { store->add("added", 1); });
  expect_wakes("appended", [&] { store->append("appended", bytes("1")); });
  expect_wakes("several", [&] { store->multiSet({"a", "several"}, {bytes("1"), bytes("2")}); });
}

TEST_P(StoreContract, GetsWaitToo) {
  std::thread reader([&] {
    const StorePtr other = host->connect();
    EXPECT_EQ(text(other->get("one")), "1");
    EXPECT_EQ(text(other->multiGet({"one", "two"}).at(1)), "2");
  });
  store->set("one", bytes("1"));
  store->set("two", bytes("2"));
  reader.join();
}

TEST_P(StoreContract, WaitsTimeOut) {
  EXPECT_THROW(store->wait({"never"}, 50ms), c10::DistStoreError);
  store->set("there", bytes("1"));
  EXPECT_THROW(store->wait({"there", "never"}, 50ms), c10::DistStoreError);
  EXPECT_NO_THROW(store->wait({"there"}, 60s));
  EXPECT_EQ(get("there"), "1");
}

TEST_P(StoreContract, TheStoresTimeoutIsThatOfGets) {
  const auto before = store->getTimeout();
  store->setTimeout(50ms);
  EXPECT_EQ(store->getTimeout(), 50ms);
  EXPECT_THROW(store->get("never"), c10::DistStoreError);
  EXPECT_THROW(store->multiGet({"never"}), c10::DistStoreError);
  EXPECT_THROW(store->wait({"never"}), c10::DistStoreError);
  store->setTimeout(before);
  EXPECT_EQ(store->add("usable", 1), 1);
}

TEST_P(StoreContract, PrefixesKeepKeysApart) {
  const auto a = c10::make_intrusive<c10d::PrefixStore>("run/a", store);
  const auto b = c10::make_intrusive<c10d::PrefixStore>("run/b", store);
  a->set("key", bytes("of a"));
  EXPECT_FALSE(b->check({"key"}));
  EXPECT_EQ(get("run/a/key"), "of a");
  EXPECT_TRUE(a->hasExtendedApi());
  a->multiSet({"x", "y"}, {bytes("1"), bytes("2")});
  EXPECT_EQ(text(a->multiGet({"y"}).at(0)), "2");
  EXPECT_THROW(b->wait({"x"}, 50ms), c10::DistStoreError);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, ::testing::Values("tcp", "own", "own_tls"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace retort::rpc::rendezvous::testing

// rpc.device_maps in a recipe: where a map is refused, and what the agents of each role make of it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "recipes/run/rank/agent_options.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

// kDistill with both roles on devices, and these maps.
std::string on_devices(const std::string& maps) {
  std::string text = replaced(kDistill, "{dp: 2}", "{dp: 2, device: cuda}");
  text = replaced(text, "student:\n", "student:\n    world: {device: cuda}\n");
  return text + "rpc:\n  device_maps:\n    " + maps + "\n";
}

class DeviceMaps : public RecipeTest {
 protected:
  recipes::RankContext context(const std::string& maps, const std::string& role) {
    recipes::RankContext context;
    context.recipe = load(on_devices(maps), {}, {.cuda = true});
    context.role = role;
    return context;
  }
  std::string refusal(const std::string& maps) {
    return message_of([&] { load(on_devices(maps), {}, {.cuda = true}); },
                      ErrorCode::kInvalidArgument);
  }
};

TEST_F(DeviceMaps, AreTurnedRoundForWhoServes) {
  const recipes::Recipe recipe = context("teacher: {0: 2, 1: 0}", "student").recipe;
  using Maps = std::map<std::string, std::map<std::string, int64_t>>;
  EXPECT_EQ(recipes::device_maps_of(recipe, "student"), (Maps{{"teacher", {{"0", 2}, {"1", 0}}}}));
  EXPECT_EQ(recipes::device_maps_of(recipe, "teacher"), (Maps{{"student", {{"2", 0}, {"0", 1}}}}));
  EXPECT_EQ(recipes::device_maps_of(recipe, "helper"), Maps{});
}

TEST_F(DeviceMaps, AreRefusedAtTheirLine) {
  for (const auto& [maps, message] : std::vector<std::pair<std::string, std::string>>{
           {"teacher: {}", "rpc.device_maps.teacher: joins no devices"},
           {"student: {0: 0}", "rpc.device_maps.student: a map is written from the student's side"},
           {"teachr: {0: 0}",
            "rpc.device_maps.teachr: 'teachr' is not declared under roles; did "
            "you mean 'teacher'?"},
           {"teacher: {a: 0}", "device indices are numbers from 0"},
           {"teacher: {0: 1, 1: 1}", "sends two devices to one; maps are one to one"}}) {
    const std::string refused = refusal(maps);
    EXPECT_NE(refused.find(message), std::string::npos) << refused;
    EXPECT_NE(refused.find("r.yaml:"), std::string::npos) << refused;
  }
}

TEST_F(DeviceMaps, ARankOnADeviceWithoutAnEntryNamesIt) {
  const at::Device second(at::kCUDA, 1);
  test::expect_error(
      ErrorCode::kInvalidArgument, "add `<a device of the student>: 1` to rpc.device_maps.teacher",
      [&] { recipes::agent_options(context("teacher: {1: 0}", "teacher"), second); });
}

TEST_F(DeviceMaps, NeedTheModule) {
  ::setenv("RETORT_CUDA_MODULE", "/nonexistent/libretort_cuda.so", 1);
  for (const std::string role : {"student", "teacher"})
    test::expect_error(ErrorCode::kUnavailable, "/nonexistent/libretort_cuda.so", [&] {
      recipes::agent_options(context("teacher: {1: 0}", role), at::Device(at::kCUDA, 0));
    });
  ::unsetenv("RETORT_CUDA_MODULE");

  recipes::RankContext none;
  none.recipe = load(kDistill);
  none.role = "teacher";
  EXPECT_EQ(recipes::agent_options(none, at::kCPU).devices, nullptr);
}

}  // namespace
}  // namespace retort::test

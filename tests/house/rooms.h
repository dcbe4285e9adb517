// The rooms of a module, which are its folders, and which of them may include which: no two include
// each other, and no longer circle of them is there either.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/house/layers.h"
#include "tests/house/sources.h"

namespace retort::house {

// The folder that a file belongs to: x/detail belongs to the room x.
std::string room_of(const std::filesystem::path& relative);

// An include of a file in another room of the same module.
struct RoomUse {
  std::string from, to;
  std::filesystem::path path;  // the file that includes
  size_t line;
  std::string included;
};

// What the rooms of each module that has several use of one another. Reads the tree once.
class Rooms {
 public:
  // `modules`: the table of modules; what is in none of them (tests, bench) has no rooms.
  Rooms(const std::vector<Source>& sources, const LayerTable& modules);

  const std::vector<RoomUse>& uses() const { return uses_; }

  // The room table that the includes make, a line for each room.
  const LayerTable& table() const { return table_; }

  // The circles of the includes, each with the lines that would have to go:
  // "a -> b -> a (a/x.h:3 includes "b/y.h")" of the rarer direction.
  // Empty if there is none.
  std::vector<std::string> circles() const;

  // The block of docs/architecture.md, without its fences: a paragraph a module, users first.
  // Errors: kInvalidArgument if there are circles, with all of them.
  std::string text() const;

  // The broken rules of the block that stands in a document: an include that no line allows, a room
  // without a line, a line without a room, an edge that nothing includes, a circle.
  void check(const std::string& markdown, const ReportAt& report) const;

 private:
  // Of the edge that the fewest includes make, and the first of these.
  std::string weakest_link(const std::vector<std::string>& circle) const;

  LayerTable modules_, table_;
  std::vector<RoomUse> uses_;
};

// The document with another text inside its ```rooms block. Errors: kInvalidArgument if there is
// none.
std::string with_room_block(std::string_view markdown, const std::string& text);

}  // namespace retort::house

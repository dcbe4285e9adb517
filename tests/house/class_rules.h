// The rule of the house about classes: one has one .cc.
#pragma once

#include <vector>

#include "tests/house/layers.h"
#include "tests/house/sources.h"

namespace retort::house {

// No two .cc files of a module define member functions of one class out of it. Classes are told
// apart by their namespaces; one that a .cc defines itself is that file's, and says nothing. Seen
// are functions with a body, as function_bodies.h finds them.
void check_classes(const std::vector<Source>& sources, const LayerTable& modules,
                   const ReportAt& report);

}  // namespace retort::house

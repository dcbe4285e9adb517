// Which packages stay in which folders, as docs/architecture.md says it.
#pragma once

#include <string>
#include <vector>

#include "tests/house/sources.h"

namespace retort::house {

// Checks the lines "package, package -> folder, folder" of the ```packages block of a document, if
// it has one: an include <package> or <package/...> stands in one of the folders or below, and each
// folder has one. The longest package that fits decides.
void check_packages(const std::string& markdown, const std::vector<Source>& sources,
                    const ReportAt& report);

}  // namespace retort::house

// Reads goldens.txt (made by make_goldens.py): a name and its values on each line.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/source_folder.h"

namespace retort::parallel::testing {

class Goldens {
 public:
  Goldens() {
    const std::string path = test::source_folder() / "tests/parallel/goldens.txt";
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot open " + path + " (set RETORT_SOURCE_DIR)");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, number;
      words >> name;
      while (words >> number)
        values_[name].push_back(std::strtod(number.c_str(), nullptr));
    }
  }
  const std::vector<double>& at(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw std::runtime_error("goldens.txt has no '" + name + "'");
    return found->second;
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

}  // namespace retort::parallel::testing

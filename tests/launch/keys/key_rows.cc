#include "tests/launch/keys/key_rows.h"

#include <algorithm>
#include <cctype>
#include <type_traits>
#include <utility>

#include "launch/yaml/reader.h"

namespace retort::test {
namespace {

namespace yaml = launch::detail;

class KeyWalk {
 public:
  KeyWalk(std::set<std::string>& keys, std::string prefix)
      : keys_(keys), prefix_(std::move(prefix)) {}

  template <class T>
  void operator()(const char* name, T&, const char*) {
    add<T>(prefix_ + name);
  }

 private:
  template <class T>
  void add(const std::string& path) {
    if constexpr (yaml::OptionStruct<T>) {
      T block{};
      KeyWalk inside(keys_, path + ".");
      block.fields(inside);
    } else if constexpr (yaml::kIsOptional<T>) {
      keys_.insert(path);
      add_blocks<typename T::value_type>(path);
    } else if constexpr (yaml::kIsVector<T>) {
      keys_.insert(path);
      add_blocks<typename T::value_type>(path + "[]");
    } else if constexpr (yaml::kIsMap<T>) {
      if constexpr (yaml::OptionStruct<typename T::mapped_type>)
        keys_.insert(path + ".<name>");
      else
        keys_.insert(path);
      add_blocks<typename T::mapped_type>(path + ".<name>");
    } else {
      keys_.insert(path);
    }
  }

  template <class T>
  void add_blocks(const std::string& path) {
    if constexpr (yaml::OptionStruct<T>) add<T>(path);
  }

  std::set<std::string>& keys_;
  std::string prefix_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const KeyRow& row) {
  if (!row.test.empty()) return out << row.key << " in " << row.test;
  return out << row.change << (row.refusal.empty() ? "" : " (refused)");
}

KeyRow acts(const char* base, std::string change, std::string (*observe)(const Seen&),
            std::vector<std::string> with) {
  KeyRow row{.key = key_of(change), .base = base, .with = std::move(with)};
  row.change = std::move(change);
  row.observe = observe;
  return row;
}

KeyRow refused(const char* base, std::string change, std::string message,
               std::vector<std::string> with) {
  KeyRow row{.key = key_of(change), .base = base, .with = std::move(with)};
  row.change = std::move(change);
  row.refusal = std::move(message);
  return row;
}

KeyRow in_run(std::string key, std::string test, std::string text) {
  KeyRow row{.key = std::move(key)};
  row.test = std::move(test);
  row.text = std::move(text);
  return row;
}

std::string key_of(const std::string& change) {
  const std::string path = change.substr(0, change.find('='));
  std::string key;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    begin = end + 1;

    const bool item = !part.empty() && std::isdigit(static_cast<unsigned char>(part.front()));
    if (key == "roles") part = "<name>";
    if (item)
      key += "[]";
    else
      key += (key.empty() ? "" : ".") + part;
  }
  return key;
}

std::set<std::string> recipe_keys() {
  std::set<std::string> keys;
  recipes::Recipe recipe;
  KeyWalk walk(keys, "");
  recipe.fields(walk);
  return keys;
}

std::vector<KeyRow> key_rows() {
  std::vector<KeyRow> all;
  for (const auto& part : {run_rows, kubernetes_rows, data_rows, train_rows, loss_rows,
                           generation_rows, episode_rows, policy_rows})
    for (KeyRow& row : part())
      all.push_back(std::move(row));
  return all;
}

}  // namespace retort::test

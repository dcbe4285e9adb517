// Parameters of tools whose values are written without quotes: what they are, a schema says.
// Private to models/text.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace retort::models::detail {

// The types that a list of tools gives its parameters, in the order in which they are tried.
class ParameterTypes {
 public:
  // A JSON array of schemas, as chat templates take them. kInvalidArgument for anything else;
  // schemas in it that say nothing of types are taken as such.
  explicit ParameterTypes(std::string_view tools_json);

  // The JSON of a parameter's value, as transformers' parse_response(tools=...) makes it: of the
  // first type that it can be, a text where there is none, or no schema.
  std::string typed(const std::string& tool, const std::string& parameter,
                    std::string_view value) const;

 private:
  std::map<std::string, std::map<std::string, std::vector<std::string>>> types_;
};

}  // namespace retort::models::detail

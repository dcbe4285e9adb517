// A server with the exchanges of SGLang (make_sglang.py), and the adapter that asks it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/engines/recorded_fixture.h"

namespace retort::test {

class RecordedSglang : public RecordedEngine {
 protected:
  RecordedSglang() : RecordedEngine("sglang-0.5.23") {
    server_ = std::make_unique<RecordedServer>(
        exchanges_, std::map<std::string, std::string>{{"rid", ""},
                                                       {"cache_salt", ""},
                                                       {"weight_version", "default"},
                                                       {"model_path", "/models/tiny"}});
    engine_ = make();
  }

  nlohmann::json answer(const std::string& name) const {
    return nlohmann::json::parse(exchange(name).answer.at("body").get<std::string>());
  }
  // The exchanges that it may make before the first question.
  static std::vector<std::string> first() { return {"model", "server", "vocabulary"}; }

  std::unique_ptr<engines::Engine> make(engines::ExternalOptions options = {},
                                        const std::string& key = "") const {
    return make_at(server_->url(), std::move(options), key);
  }
  static std::unique_ptr<engines::Engine> make_at(const std::string& url,
                                                  engines::ExternalOptions options = {},
                                                  const std::string& key = "") {
    options.engine = engines::EngineKind::kSglang;
    return engines::make_engine(options, url, key);
  }
};

}  // namespace retort::test

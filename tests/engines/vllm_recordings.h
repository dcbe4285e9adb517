// A server with the recordings of vLLM (record_vllm.py), and the adapter that asks it.
#pragma once

#include <memory>
#include <string>

#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/engines/recorded_fixture.h"

namespace retort::test {

class RecordedVllm : public RecordedEngine {
 protected:
  RecordedVllm() : RecordedEngine("vllm-0.32.0") {
    // The folder of this machine, in place of the one that was recorded.
    exchanges_.at("reload").request["body"]["kwargs"]["weights_path"] = weights();
    server_ = std::make_unique<RecordedServer>(exchanges_);
    engine_ = make();
  }

  nlohmann::json choice(const std::string& name) const { return exchange(name).choice(); }
  std::unique_ptr<engines::Engine> make(engines::ExternalOptions options = {},
                                        const std::string& key = "") const {
    return engines::make_engine(options, server_->url(), key);
  }
};

}  // namespace retort::test

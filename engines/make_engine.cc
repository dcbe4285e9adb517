#include "base/error.h"
#include "engines/engine.h"
#include "engines/llamacpp/llamacpp.h"

namespace retort::engines {

std::unique_ptr<Engine> make_engine(const ExternalOptions& options, const std::string& url,
                                    const std::string& key) {
  switch (options.engine) {
    case EngineKind::kLlamacpp: return llamacpp::make_llamacpp(options, url, key);
    case EngineKind::kVllm:
    case EngineKind::kKserve: break;
  }
  throw Error(ErrorCode::kUnavailable,
              "no adapter for engine: " + std::string(enum_name(options.engine)));
}

}  // namespace retort::engines

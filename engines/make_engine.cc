#include "base/error.h"
#include "engines/engine.h"

namespace retort::engines {

std::unique_ptr<Engine> make_engine(const ExternalOptions& options, const std::string& /*url*/,
                                    const std::string& /*key*/) {
  throw Error(ErrorCode::kUnavailable,
              "no adapter for engine: " + std::string(enum_name(options.engine)));
}

}  // namespace retort::engines

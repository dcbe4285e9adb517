// Speaks to one KServe server: paths, what is sent again, what stands in errors.
#pragma once

#include <memory>
#include <string>

#include "base/deadline.h"
#include "base/future.h"
#include "engines/contract/options.h"
#include "engines/kserve/served_model.h"
#include "http/client.h"

namespace retort::engines::kserve {

// Threads: any; futures complete on the client's thread.
// Errors: as http::Client's and those of what reads the answers, with the address as context.
class Server {
 public:
  Server(const ExternalOptions& options, http::Url url, const std::string& key);

  // Asks the server what it is, and what its model takes and gives: options.served_model, or the
  // only one there is. kUnavailable while the server or the model is not ready; kMismatch for a
  // server without binary tensors, without the model, or whose model does not keep our convention.
  Future<ServedModel> look(Deadline deadline);
  // POST v2/models/M/infer. A busy server is waited for, and a connection that broke is no error
  // the first time: nothing changes at the server.
  Future<http::Response> infer(http::Request request, const std::string& model, Deadline deadline);
  // Unloads `model` and loads it with `configuration`.
  Future<Empty> reload(const std::string& model, const Json& configuration, Deadline deadline);

  const http::Url& url() const { return url_; }

 private:
  struct Look;
  Future<http::Response> ask(http::Method method, const std::string& path, std::string body,
                             Duration attempt, bool any_status, Deadline deadline);
  Future<Json> ask_json(http::Method method, const std::string& path, std::string body,
                        Deadline deadline);
  Future<Empty> expect_ready(const std::string& path, const std::string& what, Deadline deadline);
  Future<Empty> find_model(std::shared_ptr<Look> look);
  Future<Empty> read_model(std::shared_ptr<Look> look);

  const ExternalOptions options_;
  const http::Url url_;
  http::Client client_;
};

}  // namespace retort::engines::kserve

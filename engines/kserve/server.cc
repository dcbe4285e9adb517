#include "engines/kserve/server.h"

#include <algorithm>
#include <climits>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/future_combinators.h"
#include "engines/wire/answer_status.h"
#include "engines/wire/retry.h"

namespace retort::engines::kserve {
namespace {

// Letters, digits and "-._~" as they are, all else as %XX: a part of a path.
std::string path_part(const std::string& name) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  constexpr std::string_view kPlain = "-._~";
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter || (c >= '0' && c <= '9') || kPlain.find(c) != std::string_view::npos) {
      text += c;
    } else {
      text += '%';
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
  }
  return text;
}

std::string model_path(const std::string& model) { return "/v2/models/" + path_part(model); }

Future<Empty> nothing() {
  Promise<Empty> promise;
  promise.set_value({});
  return promise.future();
}

}  // namespace

struct Server::Look {
  Deadline deadline;
  std::string program;  // "triton 2.51.0"
  std::set<std::string> extensions;
  std::string model;
  Json metadata;
  std::optional<Json> configuration;
};

Server::Server(const ExternalOptions& options, http::Url url, const std::string& key)
    : options_(options),
      url_(std::move(url)),
      client_({.max_inflight = static_cast<int>(std::min<int64_t>(options.max_inflight, INT_MAX)),
               .ca_file = options.ca_file,
               .api_key = key}) {}

Future<http::Response> Server::ask(http::Method method, const std::string& path, std::string body,
                                   Duration attempt, bool any_status, Deadline deadline) {
  http::Request request{.method = method, .url = url_.below(path)};
  if (method == http::Method::kPost) request.body.push_back(http::piece_of(std::move(body)));
  request.idempotent = true;
  request.resends = 1;
  request.any_status = any_status;
  request.limits.attempt = attempt;
  return client_.send(std::move(request), deadline);
}

Future<Json> Server::ask_json(http::Method method, const std::string& path, std::string body,
                              Deadline deadline) {
  const std::string shown = url_.below(path).shown();
  return ask(method, path, std::move(body), options_.timeout, false, deadline)
      .then([shown](http::Response response) {
        try {
          return parse_json(response.body);
        } catch (const Error& error) {
          throw error.with("url", shown);
        }
      });
}

Future<Empty> Server::expect_ready(const std::string& path, const std::string& what,
                                   Deadline deadline) {
  const std::string shown = url_.below(path).shown();
  return ask(http::Method::kGet, path, "", options_.timeout, true, deadline)
      .then([shown, what](http::Response response) {
        if (response.status / 100 == 2) return;
        const bool locked = response.status == 401 || response.status == 403;
        throw Error(locked ? ErrorCode::kUnauthenticated : ErrorCode::kUnavailable,
                    what +
                        (locked ? ": check the key"
                                : " is not ready: it loads, or failed to; "
                                  "see the server's log") +
                        (response.body.empty() ? "" : ": " + in_quotes(response.body)))
            .with("url", shown)
            .with("status", response.status);
      });
}

Future<ServedModel> Server::look(Deadline deadline) {
  auto look = std::make_shared<Look>(Look{.deadline = deadline});
  // A server that still loads says 400. One without this path is not refused yet: the next answer
  // shows whether it speaks the protocol at all.
  return done_or_missing(expect_ready("/v2/health/ready", "the server", deadline))

      // The program says what it is, and whether it speaks the binary form in which tensors are
      // asked for.
      .then([this, look](Empty) { return ask_json(http::Method::kGet, "/v2", "", look->deadline); })
      .then([this, look](const Json& answer) {
        look->program =
            text_field(answer, "name", "server") + " " + text_field(answer, "version", "server");
        for (const Json& extension : list_field(answer, "extensions", "server"))
          if (extension.is_string()) look->extensions.insert(extension.get<std::string>());
        if (look->extensions.count("binary_tensor_data") == 0)
          throw Error(ErrorCode::kMismatch,
                      look->program + " does not have the extension binary_tensor_data");
        return find_model(look);
      })

      // The model is described only once it is there.
      .then([this, look](Empty) {
        return expect_ready(model_path(look->model) + "/ready", "model " + in_quotes(look->model),
                            look->deadline);
      })
      .then([this, look](Empty) { return read_model(look); })
      .then([this, look](Empty) {
        ServedModel model = read_served_model(look->model, options_.tensors, look->metadata,
                                              std::move(look->configuration));
        model.state.version = look->program;
        return model;
      });
}

// Takes the model from the server's list of models. Without such a list the options must name it.
Future<Empty> Server::find_model(std::shared_ptr<Look> look) {
  look->model = options_.served_model;
  if (look->extensions.count("model_repository") == 0) {
    if (!look->model.empty()) return nothing();
    throw Error(ErrorCode::kInvalidArgument,
                "served_model: is missing, and the server does not list its models");
  }

  return ask_json(http::Method::kPost, "/v2/repository/index", "{}", look->deadline)
      .then([look](const Json& index) {
        std::set<std::string> names;
        std::string listed;
        if (!index.is_array())
          throw Error(ErrorCode::kCorrupt, "the list of models is " + shown(index));
        for (const Json& entry : index) {
          const std::string name = text_field(entry, "name", "the list of models");
          if (names.insert(name).second) listed += (listed.empty() ? "" : ", ") + in_quotes(name);
        }
        if (look->model.empty() && names.size() == 1) look->model = *names.begin();
        if (look->model.empty())
          throw Error(ErrorCode::kInvalidArgument,
                      "served_model: is missing; the server has " +
                          (listed.empty() ? std::string("no model") : listed));
        if (names.count(look->model) == 0)
          throw Error(ErrorCode::kMismatch, "the server has no model " + in_quotes(look->model) +
                                                "; it has " +
                                                (listed.empty() ? std::string("none") : listed));
      });
}

Future<Empty> Server::read_model(std::shared_ptr<Look> look) {
  return ask_json(http::Method::kGet, model_path(look->model), "", look->deadline)
      .then([this, look](Json metadata) -> Future<Empty> {
        look->metadata = std::move(metadata);
        if (look->extensions.count("model_configuration") == 0) return nothing();
        return ask_json(http::Method::kGet, model_path(look->model) + "/config", "", look->deadline)
            .then([look](Json configuration) { look->configuration = std::move(configuration); });
      });
}

Future<http::Response> Server::infer(http::Request request, const std::string& model,
                                     Deadline deadline) {
  request.url = url_.below(model_path(model) + "/infer");
  request.idempotent = true;
  request.resends = 1;
  request.limits.attempt = options_.timeout;
  request.patience.total = deadline.remaining();
  // A server that loads the model anew has none meanwhile.
  return map_error(client_.send(std::move(request), deadline), [](const Error& error) {
    if (status_of(error) != 404) return error;
    return with_advice(error, ErrorCode::kUnavailable, "the server has no such model now");
  });
}

Future<Empty> Server::reload(const std::string& model, const Json& configuration,
                             Deadline deadline) {
  const std::string path = "/v2/repository/models/" + path_part(model);
  const std::string load = Json{{"parameters", {{"config", configuration.dump()}}}}.dump();
  return ask(http::Method::kPost, path + "/unload", "{}", options_.load_timeout, false, deadline)
      .then([this, path, load, deadline](const http::Response&) {
        return ask(http::Method::kPost, path + "/load", load, options_.load_timeout, false,
                   deadline);
      })
      .then([](const http::Response&) {});
}

}  // namespace retort::engines::kserve

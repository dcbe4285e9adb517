#include "tests/engines/llamacpp/rewriting_proxy.h"

#include <utility>

#include "base/error.h"
#include "engines/contract/options.h"
#include "engines/make_engine.h"
#include "tests/engines/llamacpp/real_server.h"

namespace retort::engines::test {

using nlohmann::json;
using retort::test::Peer;
using retort::test::Received;

RewritingProxy::RewritingProxy(std::string upstream, Proxying how)
    : upstream_(std::move(upstream)),
      how_(std::move(how)),
      server_(std::make_unique<retort::test::ScriptedServer>([this](Peer& peer) { serve(peer); })) {
}

std::unique_ptr<Engine> RewritingProxy::engine(Duration timeout) const {
  return make_engine({.engine = EngineKind::kLlamacpp, .url = {url()}, .timeout = timeout}, url(),
                     "");
}

void RewritingProxy::serve(Peer& peer) {
  while (const auto request = peer.read()) {
    try {
      if (!pass(peer, *request)) return;
    } catch (const Error&) {
      return;  // the server is gone: so is this connection
    }
  }
}

bool RewritingProxy::pass(Peer& peer, const Received& request) {
  if (how_.everything && how_.everything(peer, request)) return false;
  const bool completion = request.target.starts_with("/completion");
  const int64_t number = completion ? completions_++ : completions_.load();
  const std::string server = how_.upstream ? how_.upstream(number) : upstream_;
  if (!completion) {
    const http::Response answer = ask(server, request, request.body);
    return peer.write(retort::test::reply(answer.status, answer.body));
  }

  Passing passing{.number = number, .asked = json::parse(request.body), .reply = ""};
  json asked = passing.asked;
  if (how_.asked) how_.asked(asked);
  http::Response answer = ask(server, request, asked.dump());
  if (how_.answered && answer.status == 200) {
    json body = json::parse(answer.body);
    how_.answered(passing.asked, body);
    answer.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  }
  passing.reply = retort::test::reply(answer.status, answer.body);
  if (how_.instead && how_.instead(peer, passing)) return false;
  return peer.write(passing.reply);
}

http::Response RewritingProxy::ask(const std::string& server, const Received& request,
                                   std::string body) {
  http::Request asked{.url = http::parse_url(server)};
  asked.method = request.method == "GET" ? http::Method::kGet : http::Method::kPost;
  asked.url.target = request.target;
  if (!body.empty()) asked.body = {http::piece_of(std::move(body))};
  asked.any_status = true;
  asked.idempotent = true;
  asked.limits.body_bytes = uint64_t{64} << 20;
  return client_.send(std::move(asked), soon()).get();
}

}  // namespace retort::engines::test

#include "tests/engines/recorded_server.h"

#include "base/file.h"

namespace retort::test {

using nlohmann::json;

json Exchange::choice() const {
  return json::parse(answer.at("body").get<std::string>()).at("choices").at(0);
}

std::string Exchange::reply() const {
  const std::string body = answer.at("body").get<std::string>();
  const json& type = answer.at("content_type");
  const std::string line =
      type.is_null() ? "" : "Content-Type: " + type.get<std::string>() + "\r\n";
  return "HTTP/1.1 " + std::to_string(answer.at("status").get<int>()) + " Because\r\n" + line +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

Exchange read_exchange(const std::filesystem::path& file) {
  const json both = json::parse(read_file(file));
  return {.request = both.at("request"), .answer = both.at("answer")};
}

std::map<std::string, Exchange> read_exchanges(const std::filesystem::path& folder) {
  std::map<std::string, Exchange> exchanges;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    exchanges[entry.path().stem().string()] = read_exchange(entry.path());
  return exchanges;
}

RecordedServer::RecordedServer(std::map<std::string, Exchange> exchanges,
                               std::map<std::string, std::string> own)
    : exchanges_(std::move(exchanges)),
      own_(std::move(own)),
      server_(answer_all([this](const Received& received) { return respond(received); })) {
  for (const auto& [name, exchange] : exchanges_)
    replies_[name] = exchange.reply();
}

std::string RecordedServer::respond(const Received& received) {
  json body = received.body.empty() ? json() : json::parse(received.body, nullptr, false);
  const std::lock_guard lock(mutex_);
  for (auto& [field, value] : own_) {
    if (!body.is_object() || !body.contains(field)) continue;
    if (body[field].is_string()) value = body[field].get<std::string>();
    body.erase(field);
  }
  const json request = {{"method", received.method}, {"path", received.target}, {"body", body}};
  for (const auto& [name, exchange] : exchanges_)
    if (exchange.request == request) {
      asked_.push_back(name);
      last_[name] = received;
      return filled(replies_.at(name));
    }
  unknown_.push_back(request.dump());
  return test::reply(418, "nobody recorded this");
}

// The length of the body is that of the answer, and may be wrong there.
std::string RecordedServer::filled(std::string reply) const {
  const size_t before = reply.size();
  for (const auto& [field, value] : own_) {
    const std::string name = "${" + field + "}";
    for (size_t at = 0; (at = reply.find(name, at)) != std::string::npos; at += value.size())
      reply.replace(at, name.size(), value);
  }
  static const std::string kLength = "Content-Length: ";
  const size_t at = reply.find(kLength);
  if (at == std::string::npos || reply.size() == before) return reply;

  const size_t digits = at + kLength.size();
  const size_t end = reply.find("\r\n", digits);
  const size_t length = std::stoul(reply.substr(digits, end - digits)) + reply.size() - before;
  return reply.replace(digits, end - digits, std::to_string(length));
}

std::vector<std::string> RecordedServer::unknown() const {
  const std::lock_guard lock(mutex_);
  return unknown_;
}
std::vector<std::string> RecordedServer::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}
Received RecordedServer::last(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return last_.at(name);
}
void RecordedServer::answer(const std::string& name, const std::string& reply) {
  const std::lock_guard lock(mutex_);
  replies_.at(name) = reply;
}

}  // namespace retort::test

#include "engines/served/judge.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/printable.h"
#include "engines/served/served_info.h"
#include "roles/reward/checks.h"
#include "roles/teacher/caller.h"

namespace retort::engines {

using roles::JudgeAnswer;
using roles::JudgeQuestion;

EngineJudge::EngineJudge(std::shared_ptr<Engine> engine, Options options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      packs_(options_.name, options_.timeout) {}

void EngineJudge::serve(rpc::Agent& agent, std::shared_ptr<rpc::HandlerQueue> queue) {
  agent.serve(roles::kTeacherInfo, queue,
              [this](const roles::InfoRequest&, const rpc::CallContext&) { return info(); });
  agent.serve(
      roles::kJudgeAnswer, queue,
      [this](const JudgeQuestion& q, const rpc::CallContext& caller) { return answer(q, caller); });
}

roles::TeacherInfo EngineJudge::info() const {
  return {.name = options_.name,
          .weight_version = kServedVersion,
          .vocabulary_fingerprint = "",
          .files = options_.served_model};
}

Future<JudgeAnswer> EngineJudge::answer(const JudgeQuestion& question,
                                        const rpc::CallContext& caller) {
  roles::check_question(question);
  // The caller's time does not run while the engine works: that has a limit of its own.
  caller.clock->wait();
  return packs_
      .ask(
          question.texts.size(), [caller] { return roles::still_waits(caller); },
          [&](size_t i, Deadline deadline) {
            return engine_->write(
                {.text = question.texts[i], .max_new_tokens = question.max_new_tokens}, deadline);
          })
      .then([id = question.request_id, refused = refused_](std::vector<Written> written) {
        JudgeAnswer answer{.request_id = id, .texts = {}, .cut = {}};
        // A question that the server refuses does not fail the others: its completion gets no
        // score. Only the first one is logged, so that a server which refuses many does not fill
        // the log.
        for (Written& one : written) {
          if (!one.refused.empty() && (*refused)++ == 0) {
            RETORT_LOG(kWarning) << "the server refuses a question, whose completion gets no "
                                    "score; later ones are not logged: "
                                 << printable(one.refused);
          }
          answer.texts.push_back(std::move(one.text));
          answer.cut.push_back(one.cut ? 1 : 0);
        }
        return answer;
      });
}

bool EngineJudge::work() {
  packs_.look();
  return false;
}

void EngineJudge::stop() { packs_.stop(); }

}  // namespace retort::engines

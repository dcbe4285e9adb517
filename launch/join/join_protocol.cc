#include "launch/join/join_protocol.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/host_name.h"
#include "base/json_text.h"
#include "base/process_name.h"
#include "base/this_host.h"
#include "rpc/rendezvous/rendezvous.h"

namespace retort::launch {
namespace {

using namespace std::chrono_literals;

constexpr const char* kStart = "start";
constexpr const char* kHeard = "heard";
// How long to wait for what is there already, or follows at once.
constexpr std::chrono::milliseconds kSoon{5'000};
// How long the others have to hear that the meeting is called off.
constexpr std::chrono::milliseconds kToHear{3'000};
// How long those have to come that were started at the same time, on a busy machine.
constexpr std::chrono::milliseconds kToCome{20'000};

std::string claim_key(const std::string& name) { return "claim/" + name; }
std::string member_key(const std::string& name) { return "member/" + name; }
std::string context_key(const std::string& name) { return "context/" + name; }

parallel::StoreClient connect(const MeetingAccess& access, Duration within) {
  const std::string where = access.host + ":" + std::to_string(access.port);
  try {
    return {access.host, access.port, "meeting/", within,
            rpc::store_connector({.name = access.own_name,
                                  .run = kMeetingRun,
                                  .secret = access.secret,
                                  .encryption = access.encryption})};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    throw Error(ErrorCode::kTimeout,
                "nobody who keeps the run, student/0 or its launcher, answered at " + where +
                    " within " + format_duration(within) + ": " + error.message());
  }
}

std::string to_text(const Member& member) {
  return JsonLine()
      .add("host", member.host)
      .add("pid", member.pid)
      .add("machine", member.machine)
      .add("cpus", member.cpus)
      .add("refusal", member.refusal)
      .str();
}

Error damaged(const std::string& key, const std::string& why) {
  return Error(ErrorCode::kCorrupt,
               "what stands in the store at '" + key + "' cannot be read: " + why);
}

Member member_from(const std::string& name, const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {.name = name,
            .host = json.at("host"),
            .pid = json.at("pid"),
            .machine = json.at("machine"),
            .cpus = json.at("cpus"),
            .refusal = json.at("refusal")};
  } catch (const nlohmann::json::exception& e) {
    throw damaged(member_key(name), e.what());
  }
}

// "process 71 on gpu2".
std::string where_is(const Member& member) {
  return "process " + std::to_string(member.pid) + " on " + member.host;
}

bool may_share(const Member& a, const Member& b, size_t core) {
  return a.machine == b.machine && core < a.cpus.size() && core < b.cpus.size() &&
         a.cpus[core] == '1' && b.cpus[core] == '1';
}

}  // namespace

Member own_member(const std::string& name) {
  Member member{.name = name, .host = host_name(), .pid = ::getpid()};
  // Containers and namespaces have names of their own, but share the cores of their machine.
  member.machine = boot_id();
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      member.cpus += CPU_ISSET(core, &cores) ? '1' : '0';
  member.cpus.resize(member.cpus.find_last_of('1') + 1);
  return member;
}

std::map<std::string, int64_t> share_cores(const std::vector<Member>& members) {
  std::map<std::string, int64_t> threads;
  for (const Member& member : members) {
    const int64_t cores = std::count(member.cpus.begin(), member.cpus.end(), '1');
    // Whoever may use one of its cores has a share in all of them, as a launcher counts.
    const int64_t sharers = std::count_if(members.begin(), members.end(), [&](const Member& other) {
      for (size_t core = 0; core < member.cpus.size(); ++core)
        if (may_share(member, other, core)) return true;
      return false;
    });
    threads[member.name] = std::max<int64_t>(1, cores / std::max<int64_t>(1, sharers));
  }
  return threads;
}

MeetingHost::MeetingHost(const MeetingAccess& access, const MeetingStart& start)
    : store_(connect(access, 2 * kSoon)) {
  store_.set(kStart, JsonLine()
                         .add("digest", start.digest)
                         .add("mode", start.mode)
                         .add("recipe", start.recipe)
                         .add("load_timeout_ms", static_cast<int64_t>(start.load_timeout.count()))
                         .add("has_launcher", start.has_launcher)
                         .str());
}

std::vector<Member> MeetingHost::wait_for(
    const std::vector<std::string>& names, Duration within,
    const std::function<bool()>& is_stopping,
    const std::function<void(const std::vector<Member>&)>& check) {
  const Deadline deadline = Deadline::after(within);
  std::map<std::string, Member> here;
  const auto missing = [&] {
    std::string text;
    for (const std::string& name : names)
      if (!here.contains(name)) text += (text.empty() ? "" : ", ") + name;
    return text;
  };

  std::vector<Member> members;
  try {
    for (;;) {
      // Each round looks at all that are missing, so that one that refuses is heard at once,
      // whatever its place.
      for (const std::string& name : names) {
        if (here.contains(name) || !store_.contains(member_key(name))) continue;
        Member member = member_from(name, store_.get(member_key(name), deadline));
        if (!member.refusal.empty())
          throw Error(ErrorCode::kMismatch,
                      name + " (" + where_is(member) + ") refuses: " + member.refusal);
        here.emplace(name, std::move(member));
      }
      if (here.size() == names.size()) break;

      if (is_stopping())
        throw Error(ErrorCode::kCancelled, "stopped while it waited for " + missing());
      if (deadline.expired())
        throw Error(ErrorCode::kTimeout, missing() + " did not join within " +
                                             format_duration(within) +
                                             "; look for why they were not started, or raise "
                                             "launch.load_timeout");
      std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(100ms, deadline.remaining()));
    }
    for (const std::string& name : names)
      members.push_back(here.at(name));
    if (check) check(members);
  } catch (const Error& error) {
    // The others wait for what they are to be, and must hear that it does not come.
    call_off(names, error);
    throw;
  }
  return members;
}

void MeetingHost::tell(const ChildContext& context) {
  ChildContext open = context;
  // The guest has proved that it knows the secret, which need not stand in the store.
  open.secret.clear();
  store_.set(context_key(process_name(context.role, context.rank)), encode_context(open));
}

void MeetingHost::call_off(const std::vector<std::string>& names, const Error& why) {
  // Those who are there get the time to hear it. So do those who were started with the others and
  // come a moment later: nobody would be here for them, and they would wait for as long as a run
  // may take to load. Where their time is up, or somebody asks to stop, they are not waited for.
  const bool may_come = why.code() == ErrorCode::kMismatch;
  int64_t listeners = 0;
  for (const std::string& name : names) {
    store_.set(
        context_key(name),
        JsonLine().add("called_off", why.message()).add("code", to_string(why.code())).str());
    const bool is_there = store_.contains(claim_key(name));
    const bool has_refused = !is_there && store_.contains(member_key(name));
    if (is_there || (may_come && !has_refused)) ++listeners;
  }
  const Deadline deadline = Deadline::after(may_come ? kToCome : kToHear);
  while (store_.add(kHeard, 0) < listeners && !deadline.expired())
    std::this_thread::sleep_for(50ms);
}

MeetingGuest::MeetingGuest(const MeetingAccess& access, Duration within)
    : store_(connect(access, within)) {
  const std::string text = store_.get(kStart, Deadline::after(within));
  try {
    const auto json = nlohmann::json::parse(text);
    start_ = {.digest = json.at("digest"),
              .mode = json.at("mode"),
              .recipe = json.at("recipe"),
              .load_timeout = Duration(json.at("load_timeout_ms").get<int64_t>()),
              .has_launcher = json.at("has_launcher")};
  } catch (const nlohmann::json::exception& e) {
    throw damaged(kStart, e.what());
  }
}

std::string MeetingGuest::keeper() const {
  return start_.has_launcher ? "the launcher" : "student/0";
}

void MeetingGuest::claim(const std::string& name) {
  // The store counts, so that of two processes which claim one name exactly one is the first.
  if (store_.add(claim_key(name), 1) == 1) {
    store_.set(member_key(name), to_text(own_member(name)));
    return;
  }

  // Who came first says where it is right after its claim.
  std::string first = "another process";
  try {
    first = where_is(member_from(name, store_.get(member_key(name), Deadline::after(kSoon))));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
  }
  throw Error(ErrorCode::kInvalidArgument,
              name + " has joined already: " + first + "; two processes were started as one rank");
}

void MeetingGuest::refuse(const std::string& name, const Error& why) {
  Member member = own_member(name);
  member.refusal = why.message();
  store_.set(member_key(name), to_text(member));
  throw why;
}

ChildContext MeetingGuest::wait_for_context(const std::string& name, Duration within) {
  std::string text;
  try {
    text = store_.get(context_key(name), Deadline::after(within));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerLost) throw;
    throw Error(ErrorCode::kPeerLost,
                keeper() + ", which keeps the run, ended before the run began: " + error.message());
  }

  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("called_off")) return decode_context(text);
  // Whoever keeps the run waits with its end until everybody there has heard it.
  store_.add(kHeard, 1);
  throw Error(ErrorCode::kPeerLost,
              keeper() + " called the run off: " + json.value("called_off", ""));
}

}  // namespace retort::launch

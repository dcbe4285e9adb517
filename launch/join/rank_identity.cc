#include "launch/join/rank_identity.h"

#include <unistd.h>

#include <charconv>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "rpc/listen_address.h"

namespace retort::launch {
namespace {

[[noreturn]] void reject(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// A value and who says so: "--rank", "SLURM_PROCID".
template <class T>
struct Said {
  T value;
  std::string by;
};
template <class T>
using MaybeSaid = std::optional<Said<T>>;

std::string shown(const std::string& value) { return "'" + value + "'"; }
std::string shown(int64_t value) { return std::to_string(value); }

template <class T>
[[noreturn]] void contradict(const std::string& what, const Said<T>& a, const Said<T>& b,
                             const std::string& remedy) {
  reject(a.by + " and " + b.by + " contradict each other about the " + what + ": " +
         shown(a.value) + " and " + shown(b.value) + "; " + remedy);
}

MaybeSaid<std::string> text_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  return Said<std::string>{found->second, name};
}

MaybeSaid<int64_t> number_of(const Variables& variables, const std::string& name) {
  const auto text = text_of(variables, name);
  if (!text) return std::nullopt;
  int64_t number = -1;
  const char* const end = text->value.data() + text->value.size();
  const auto read = std::from_chars(text->value.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end || number < 0)
    reject(name + " is '" + text->value + "', expected a number from 0");
  return Said<int64_t>{number, name};
}

// An argument and the variable of ours for the same thing.
template <class T>
MaybeSaid<T> explicitly(const std::string& what, const std::optional<T>& argument,
                        const std::string& flag, const MaybeSaid<T>& variable) {
  if (!argument) return variable;
  const Said<T> said{*argument, flag};
  if (variable && variable->value != said.value)
    contradict(what, said, *variable, "leave one of them out");
  return said;
}

// What one scheduler says of this process.
struct Scheduler {
  MaybeSaid<int64_t> rank, size;
};

std::vector<Scheduler> schedulers(const Variables& variables) {
  const auto tasks = number_of(variables, "SLURM_STEP_NUM_TASKS");
  const Scheduler all[] = {
      {number_of(variables, "SLURM_PROCID"), tasks ? tasks : number_of(variables, "SLURM_NTASKS")},
      {number_of(variables, "OMPI_COMM_WORLD_RANK"), number_of(variables, "OMPI_COMM_WORLD_SIZE")},
      {number_of(variables, "RANK"), number_of(variables, "WORLD_SIZE")},
      {number_of(variables, "JOB_COMPLETION_INDEX"), std::nullopt}};
  std::vector<Scheduler> found;
  for (const Scheduler& one : all)
    if (one.rank) found.push_back(one);
  return found;
}

// The one that says where this process is; several must say the same.
Scheduler only_scheduler(const Variables& variables) {
  const std::vector<Scheduler> found = schedulers(variables);
  if (found.empty())
    reject(
        "nothing says which rank of the run this process is; looked for --rank, RETORT_RANK, "
        "SLURM_PROCID, OMPI_COMM_WORLD_RANK, RANK and JOB_COMPLETION_INDEX");

  Scheduler first = found.front();
  const std::string remedy = "unset those of the outer one, or set RETORT_RANK";
  for (const Scheduler& other : found) {
    if (other.rank->value != first.rank->value)
      contradict("rank", *first.rank, *other.rank, remedy);
    if (first.size && other.size && first.size->value != other.size->value)
      contradict("number of processes", *first.size, *other.size, remedy);
    if (!first.size) first.size = other.size;
  }
  return first;
}

// "train-3.train.default.svc" -> "train-0.train.default.svc"; "" for a name without a service.
std::string first_pod(const std::string& full_name, int64_t index) {
  const size_t dot = full_name.find('.');
  const std::string pod = full_name.substr(0, dot);
  const std::string end = "-" + std::to_string(index);
  if (dot == std::string::npos || !pod.ends_with(end)) return "";
  return pod.substr(0, pod.size() - end.size()) + "-0" + full_name.substr(dot);
}

// What a scheduler says of the first process's host. A role that is started apart from the student
// cannot know the student's pod.
void find_host(const Variables& variables, const std::string& full_name, JoinPlace& place) {
  const auto index = number_of(variables, "JOB_COMPLETION_INDEX");
  const bool has_student = !place.role || *place.role == recipes::Recipe::kDrivingRole;
  if (const auto master = text_of(variables, "MASTER_ADDR"))
    place.host = master->value;
  else if (const auto nodes = text_of(variables, "SLURM_JOB_NODELIST"))
    place.host = first_slurm_host(nodes->value);
  else if (index && has_student)
    place.host = first_pod(full_name, index->value);

  const auto port = number_of(variables, "MASTER_PORT");
  if (!port) return;
  const auto agent = text_of(variables, "TORCHELASTIC_USE_AGENT_STORE");
  if (agent && agent->value == "True")
    place.why_no_port = " (at MASTER_PORT listens torchrun itself)";
  else if (port->value >= 1 && port->value <= 65535)
    place.port = static_cast<uint16_t>(port->value);
  else
    reject("MASTER_PORT is " + std::to_string(port->value) + ", expected a port");
}

}  // namespace

Variables own_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

JoinPlace find_place(const JoinArguments& arguments, const Variables& variables,
                     const std::string& full_name) {
  JoinPlace place;
  const auto role = explicitly("role", arguments.role, "--role", text_of(variables, "RETORT_ROLE"));
  if (role) place.role = role->value;

  const auto rank =
      explicitly("rank", arguments.rank, "--rank", number_of(variables, "RETORT_RANK"));
  if (rank) {
    place.rank = rank->value;
  } else {
    const Scheduler scheduler = only_scheduler(variables);
    place.rank = scheduler.rank->value;
    if (scheduler.size) {
      place.size = scheduler.size->value;
      place.size_from = scheduler.size->by;
    }
  }

  const auto meets = explicitly("rendezvous", arguments.rendezvous, "--rendezvous",
                                text_of(variables, "RETORT_RENDEZVOUS"));
  if (meets) {
    const rpc::HostPort point = rpc::parse_host_port(meets->value);
    place.host = point.host;
    place.port = point.port;
    place.is_explicit = true;
  } else {
    find_host(variables, full_name, place);
  }

  const auto secret = explicitly("secret's file", arguments.secret_file, "--secret-file",
                                 text_of(variables, "RETORT_SECRET_FILE"));
  if (secret) place.secret_file = secret->value;
  const auto advertise = explicitly("advertised address", arguments.advertise, "--advertise",
                                    text_of(variables, "RETORT_ADVERTISE"));
  if (advertise) place.advertise = advertise->value;
  return place;
}

std::string first_slurm_host(const std::string& list) {
  // The first item ends at a comma outside of brackets.
  const size_t open = list.find('[');
  const size_t comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);

  const size_t close = list.find(']', open);
  if (close == std::string::npos)
    reject("the list of hosts '" + list + "' has a bracket that does not end");
  const std::string numbers = list.substr(open + 1, close - open - 1);
  const std::string first = numbers.substr(0, numbers.find_first_of(",-"));
  if (first.empty()) reject("the list of hosts '" + list + "' has empty brackets");

  // A name may have several brackets: "r[1-2]n[1-4]".
  const std::string rest = list.substr(close + 1);
  return list.substr(0, open) + first + (rest.empty() ? "" : first_slurm_host(rest));
}

RankName rank_of_place(const JoinPlace& place, const recipes::Recipe& recipe) {
  const auto check_size = [&](int64_t needed, const std::string& whose) {
    if (place.size && *place.size != needed)
      reject(place.size_from + " says that " + std::to_string(*place.size) +
             " processes were started, but " + whose + " has " + std::to_string(needed));
  };

  if (place.role) {
    if (!recipe.roles.contains(*place.role)) {
      std::string names;
      for (const auto& [name, role] : recipe.roles)
        names += (names.empty() ? "" : ", ") + name;
      reject("the recipe has no role '" + *place.role + "'; it has " + names);
    }
    const int64_t size = recipe.roles.at(*place.role).world.world_size();
    check_size(size, "the role " + *place.role);
    if (place.rank >= size)
      reject("the role " + *place.role + " has the ranks 0 to " + std::to_string(size - 1) +
             ", this is " + std::to_string(place.rank));
    return {*place.role, place.rank};
  }

  // Without a role the rank counts all processes of the run, the student's first and then those of
  // the other roles in their order.
  check_size(recipe.num_processes(), "the recipe");
  int64_t rank = place.rank;
  const int64_t students = recipe.student().world.world_size();
  if (rank < students) return {recipes::Recipe::kDrivingRole, rank};
  rank -= students;
  for (const auto& [name, role] : recipe.roles) {
    if (name == recipes::Recipe::kDrivingRole) continue;
    if (rank < role.world.world_size()) return {name, rank};
    rank -= role.world.world_size();
  }
  reject("the run has the ranks 0 to " + std::to_string(recipe.num_processes() - 1) + ", this is " +
         std::to_string(place.rank));
}

MeetingPoint meeting_point(const JoinPlace& place, const recipes::RendezvousOptions& options) {
  const bool other_host = options.address && *options.address != place.host;
  const bool other_port = options.port != 0 && options.port != place.port;

  // What somebody wrote for this process must agree with the recipe; a scheduler's word yields to
  // it.
  if (place.is_explicit && (other_host || other_port))
    reject(
        "RETORT_RENDEZVOUS or --rendezvous says " + place.host + ":" + std::to_string(place.port) +
        ", launch.rendezvous says " + options.address.value_or(place.host) + ":" +
        std::to_string(options.port != 0 ? options.port : place.port) + "; leave one of them out");

  MeetingPoint point{options.address.value_or(place.host), place.port};
  if (options.port != 0) point.port = static_cast<uint16_t>(options.port);
  const std::string remedy =
      "; set RETORT_RENDEZVOUS=HOST:PORT, or launch.rendezvous.address and .port";
  if (point.host.empty()) reject("nothing says at which host the run meets" + remedy);
  if (point.port == 0)
    reject("nothing says at which port the run meets" + place.why_no_port + remedy);
  return point;
}

}  // namespace retort::launch

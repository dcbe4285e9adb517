#include <cstdio>

#include "launch/links/measure_links.h"

namespace retort::launch::links {
namespace {

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

double mib(double bytes) { return bytes / 1048576.0; }

std::string row(const MeasuredLink& link, const LinkResult& result, const char* encryption) {
  const Traffic& traffic = link.traffic;
  const std::string& from = traffic.to_student ? link.server_host : link.student_host;
  const std::string& to = traffic.to_student ? link.student_host : link.server_host;
  const std::string ends = formatted("  %-16s %-16s %-10s ", from.c_str(), to.c_str(), encryption);
  if (!result.error.empty()) return ends + "failed: " + result.error + "\n";
  const double step_bytes = traffic.step_bytes * link.pair.share;
  return ends + formatted("%8.3f %8.3f %10.1f %12.2f %14.4f\n", result.p50_ms, result.p99_ms,
                          result.bytes_per_second / 1e6, mib(step_bytes),
                          step_bytes / result.bytes_per_second);
}

std::string head(const Traffic& traffic) {
  const std::string ends =
      traffic.to_student ? traffic.role + " -> student" : "student -> " + traffic.role;
  return formatted("link %s: %s of %.3f MiB, at most %.2f MiB a step\n", ends.c_str(),
                   traffic.to_student ? "answers" : "weights in messages",
                   mib(static_cast<double>(traffic.message_bytes)), mib(traffic.step_bytes)) +
         formatted("  %-16s %-16s %-10s %8s %8s %10s %12s %14s\n", "from", "to", "encryption",
                   "p50 ms", "p99 ms", "MB/s", "MiB a step", "seconds a step");
}

}  // namespace

std::string link_table(const MeasuredLinks& measured) {
  std::string text, role;
  for (const MeasuredLink& link : measured.links) {
    const std::string heading = head(link.traffic);
    if (heading != role) text += heading;
    role = heading;
    text += row(link, link.encrypted, measured.encrypts ? "on *" : "on");
    text += row(link, link.plain, measured.encrypts ? "off" : "off *");
  }
  return text + "* what rpc.encryption comes to here\n";
}

}  // namespace retort::launch::links

#include "models/text/text_template.h"

#include <utility>

#include "base/json_text.h"
#include "models/text/detail/rust_call.h"

namespace retort::models {
using detail::borrow;
using detail::call_rust;

struct TextTemplate::Impl {
  RtTextTemplate* handle = nullptr;
  std::string origin;

  ~Impl() { rt_text_template_free(handle); }
};

TextTemplate::TextTemplate(const std::string& source, const std::vector<std::string>& names,
                           std::string origin) {
  auto impl = std::make_shared<Impl>();
  impl->origin = std::move(origin);
  const std::string list = json_array(names, json_quote);
  call_rust(impl->origin, rt_text_template_open, borrow(source), borrow(list), &impl->handle);
  impl_ = std::move(impl);
}

std::string TextTemplate::render(std::string_view variables_json) const {
  detail::RustString text;
  call_rust(impl_->origin, rt_text_template_render, impl_->handle, borrow(variables_json),
            text.out());
  return text.str();
}

}  // namespace retort::models

//! Parsers of texts that only ever come from /proc, for the fuzzer (`fuzz/README.md`).

/// A text as if it were each of the files in turn.
pub fn proc_text(text: &str) {
    crate::capture::fork::not_inherited(text);
    crate::capture::kernel_words::epoll_data(text).count();
    crate::capture::kernel_words::timer_values(text).count();
    crate::capture::sockets::socket_inode(std::path::Path::new(text));
}

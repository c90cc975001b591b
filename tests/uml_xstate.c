/* Preloaded into User Mode Linux 6.1, which sets the registers of its processes as 2696 B of XSAVE state. A host's
 * kernel takes the CPU's whole state or nothing (xstateregs_set: EFAULT), and a CPU with AMX has 11 kB of it: what is
 * missing is filled in with what the process has there already.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NT_X86_XSTATE 0x202

static char whole[65536];

long ptrace(enum __ptrace_request request, ...)
{
	va_list more;
	va_start(more, request);
	long pid = va_arg(more, long), address = va_arg(more, long);
	void *data = va_arg(more, void *);
	va_end(more);
	if (request == PTRACE_SETREGSET && address == NT_X86_XSTATE) {
		struct iovec *given = data, all = {whole, sizeof whole};
		if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) == 0 && all.iov_len > given->iov_len) {
			memcpy(whole, given->iov_base, given->iov_len);
			return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, address, &all);
		}
	}
	/* glibc returns the word that was peeked at, the system call stores it. */
	if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) {
		long word, failed = syscall(SYS_ptrace, request, pid, address, &word);
		return failed ? failed : word;
	}
	return syscall(SYS_ptrace, request, pid, address, data);
}

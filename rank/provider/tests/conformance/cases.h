/* One function per case; main runs the one that its arguments name. */
#ifndef CASES_H
#define CASES_H

#include "pair.h"

void case_hints(void);
void case_addresses(void);
void case_names(void);
void case_busy(void);
void case_options(void);
void case_waiting(void);
void case_events(void);
void case_formats(void);
void case_tagged(void);
void case_untagged(void);
void case_matching(void);
void case_self_(void);
void case_peek_tagged(void);
void case_peek_untagged(void);
void case_cancel(void);
void case_truncation(void);
void case_multi_recv(void);
void case_selective(void);
void case_delivery(void);
void case_confirmation(void);
void case_directed(void);
void case_flood(void);
void case_av_remove(void);
void case_counters(void);
void case_lost_peer(void);
void case_refusals(void);
void case_threads(void);
void case_rma(void);
void case_rma_errors(void);
void case_registration(void);
void case_atomics(void);
void case_atomic_forms(void);
void case_wait_fd(void);
void case_wait_fd_counters(void);
void case_wait_fd_events(void);
void case_automatic(void);
void case_text_addresses(void);

#endif

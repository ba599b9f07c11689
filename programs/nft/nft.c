/* SPDX-License-Identifier: GPL-2.0-only
 *
 * nft: the command line of libnftables, as far as programs use it (kube-proxy
 * and the CNI plugins through knftables) and people who look at their rules.
 * The licence is the library's, because the two become one program.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nftables/libnftables.h>

static const char usage[] =
	"usage: nft [-c] [-j] [-a] [-s] [-t] [-n] [-e] [-I DIR] {-f FILE | COMMAND...}\n"
	"\n"
	"  -f, --file FILE        run the commands in FILE, - is the standard input\n"
	"  -c, --check            check only, change nothing\n"
	"  -j, --json             JSON in and out\n"
	"  -a, --handle           show handles\n"
	"  -s, --stateless        leave out counters and other state\n"
	"  -t, --terse            leave out what sets and maps hold\n"
	"  -n, --numeric          numbers for protocols, priorities, times and symbols\n"
	"  -e, --echo             show what was added\n"
	"  -I, --includepath DIR  look for included files in DIR\n"
	"  -v, --version\n";

static const struct option options[] = {
	{ "file", required_argument, NULL, 'f' },
	{ "check", no_argument, NULL, 'c' },
	{ "json", no_argument, NULL, 'j' },
	{ "handle", no_argument, NULL, 'a' },
	{ "stateless", no_argument, NULL, 's' },
	{ "terse", no_argument, NULL, 't' },
	{ "numeric", no_argument, NULL, 'n' },
	{ "echo", no_argument, NULL, 'e' },
	{ "includepath", required_argument, NULL, 'I' },
	{ "version", no_argument, NULL, 'v' },
	{ "help", no_argument, NULL, 'h' },
	{ NULL, 0, NULL, 0 },
};

/* join returns the words with spaces between them. */
static char *join(int count, char **words)
{
	size_t size = 1;
	char *text, *end;
	int i;

	for (i = 0; i < count; i++)
		size += strlen(words[i]) + 1;
	text = end = malloc(size);
	if (text == NULL)
		return NULL;
	*end = '\0';
	for (i = 0; i < count; i++)
		end += sprintf(end, "%s%s", i > 0 ? " " : "", words[i]);
	return text;
}

/* run runs the commands in a file, or the command in the words if there is no file. It
 * returns 0 on success. */
static int run(struct nft_ctx *nft, const char *file, int count, char **words)
{
	char *command;
	int failed;

	if (file != NULL)
		return nft_run_cmd_from_filename(nft, strcmp(file, "-") == 0 ? "/dev/stdin" : file);
	command = join(count, words);
	if (command == NULL) {
		perror("nft");
		return -1;
	}
	failed = nft_run_cmd_from_buffer(nft, command);
	free(command);
	return failed;
}

int main(int argc, char **argv)
{
	struct nft_ctx *nft;
	const char *file = NULL, *include = NULL;
	unsigned int flags = 0;
	bool check = false;
	int option, failed;

	while ((option = getopt_long(argc, argv, "+f:cjastneI:vh", options, NULL)) != -1) {
		switch (option) {
		case 'f': file = optarg; break;
		case 'c': check = true; break;
		case 'j': flags |= NFT_CTX_OUTPUT_JSON; break;
		case 'a': flags |= NFT_CTX_OUTPUT_HANDLE; break;
		case 's': flags |= NFT_CTX_OUTPUT_STATELESS; break;
		case 't': flags |= NFT_CTX_OUTPUT_TERSE; break;
		case 'n': flags |= NFT_CTX_OUTPUT_NUMERIC_ALL; break;
		case 'e': flags |= NFT_CTX_OUTPUT_ECHO; break;
		case 'I': include = optarg; break;
		case 'v':
			puts("nftables v" NFTABLES_VERSION " (libnftables of Debian, static)");
			return EXIT_SUCCESS;
		case 'h':
			fputs(usage, stdout);
			return EXIT_SUCCESS;
		default:
			fputs(usage, stderr);
			return EXIT_FAILURE;
		}
	}
	if (file == NULL && optind == argc) {
		fputs(usage, stderr);
		return EXIT_FAILURE;
	}

	nft = nft_ctx_new(NFT_CTX_DEFAULT);
	if (nft == NULL || (include != NULL && nft_ctx_add_include_path(nft, include) != 0)) {
		perror("nft");
		return EXIT_FAILURE;
	}
	/* see names.c for the reason */
	nft_ctx_input_set_flags(nft, NFT_CTX_INPUT_NO_DNS);
	nft_ctx_output_set_flags(nft, flags);
	nft_ctx_set_dry_run(nft, check);
	failed = run(nft, file, argc - optind, argv + optind);
	nft_ctx_free(nft);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

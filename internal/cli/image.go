package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/imagecache"
)

func newImageCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "image",
		Short: "Keep images in a folder for later runs",
		Long: `Keeps images in a folder that all nodes see. With
'berth run --image-cache FOLDER' nodes use them from there: nothing is fetched,
and no registry is contacted. So a login host can fill
the folder, and nodes need no access to the outside.

The folder is --image-cache, BERTH_IMAGE_CACHE, the one in a settings file, or
else ~/.cache/berth.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	const group = "image"
	command.AddGroup(&cobra.Group{ID: group, Title: "Commands"})
	for _, child := range []*cobra.Command{
		newImagePullCommand(), newImageImportCommand(), newImageExportCommand(), newImageConvertCommand(),
		newImageBundleCommand(), newImageListCommand(), newImageRemoveCommand(), newImageCollectCommand(), newImageVerifyCommand(),
	} {
		child.GroupID = group
		command.AddCommand(child)
	}
	return command
}

// imageFlags holds the flags of the cache commands.
type imageFlags struct {
	spec     cluster.Spec
	platform string
	form     string
	output   string
	quiet    bool
}

// add adds the named flags and the flags that all cache commands take.
func (f *imageFlags) add(flags *pflag.FlagSet, names ...string) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	addSpecFlags(all, &f.spec)
	for _, name := range append(names, "image-cache") {
		if flag := all.Lookup(name); flag != nil {
			flags.AddFlag(flag)
		}
	}
	flags.Lookup("image-cache").Usage = "`folder` of the images (default ~/.cache/berth)"
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors")
}

func (f *imageFlags) addPlatform(flags *pflag.FlagSet) {
	flags.StringVar(&f.platform, "platform", "", "`platform` of the nodes, such as linux/arm64 (default: this machine's)")
}

// run runs a command and shows its output; it calls report for each image.
func (f *imageFlags) run(command *cobra.Command, args []string, report func(imagecache.Image)) (imagecache.Sum, error) {
	preferred, err := prefer(command.Flags())
	if err != nil {
		return imagecache.Sum{}, err
	}
	if !f.spec.NamesImageCache() {
		if f.spec.ImageCache, err = imagecache.DefaultFolder(preferred.Getenv); err != nil {
			return imagecache.Sum{}, err
		}
	}
	here, err := os.Getwd()
	if err != nil {
		return imagecache.Sum{}, fmt.Errorf("find the working directory: %w", err)
	}
	f.spec.Absolute(here)
	bar := transferBar{to: command.ErrOrStderr()}
	bar.on = !f.quiet && term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb"
	sum, err := imagecache.Run(command.Context(), imagecache.Command{
		Name: command.Name(), Args: args, Spec: f.spec, Platform: f.platform, Form: f.form, Getenv: preferred.Getenv,
		Notice: func(text string) {
			bar.clear()
			if !f.quiet {
				fmt.Fprintln(command.ErrOrStderr(), "berth:", text)
			}
		},
		Report: func(image imagecache.Image) {
			bar.clear()
			report(image)
		},
		Progress: bar.show,
	})
	bar.clear()
	return sum, err
}

// transferBar shows the progress of a transfer on one line of a terminal, unless on is
// false.
type transferBar struct {
	to    io.Writer
	on    bool
	shown bool
}

func (b *transferBar) show(done, total int64) {
	if b.on && total > 0 {
		fmt.Fprintf(b.to, "\r\x1b[Kberth: %s of %s", size(done), size(total))
		b.shown = true
	}
}

func (b *transferBar) clear() {
	if b.shown {
		fmt.Fprint(b.to, "\r\x1b[K")
		b.shown = false
	}
}

func atLeastOne(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{fmt.Errorf("name %s", what)}
		}
		return nil
	}
}

// printKept prints each image that is kept.
func (f *imageFlags) printKept(command *cobra.Command) func(imagecache.Image) {
	return func(image imagecache.Image) {
		if !f.quiet {
			fmt.Fprintf(command.OutOrStdout(), "%s  %s  %s\n", image.Name, image.Digest, size(image.Bytes))
		}
	}
}

// keep runs a command and prints the images that it keeps.
func (f *imageFlags) keep(command *cobra.Command, args []string) error {
	_, err := f.run(command, args, f.printKept(command))
	return err
}

func newImagePullCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Fetch images from their registries into the folder",
		Long: `Fetches images from their registries, and keeps each layer once, as one file.
Runs with this folder use the image that was pulled last under a name, even if
the registry has a newer one: pull again to get that. Passwords, proxies and
certificates are found as by 'berth run'.`,
		Example: `  berth image pull python:3.13-slim
  berth image pull --image-cache /project/images --platform linux/arm64 nvcr.io/nvidia/pytorch:25.01-py3`,
		Args: atLeastOne("an image, such as python:3.13-slim"),
		RunE: f.keep,
	}
	f.add(command.Flags(), "registry", "image-cache-limit", "image-budget")
	f.addPlatform(command.Flags())
	return command
}

func newImageImportCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "import [NAME=]ARCHIVE...",
		Short: "Put the images of archives into the folder",
		Long: `Puts images into the folder from archives ('docker save', 'podman save', OCI
layouts; plain or compressed with gzip or zstd), from SIF files, and from
folders with an OCI layout.`,
		Example: `  berth image import app.tar
  berth image import site/app:2=app.tar.zst`,
		Args: atLeastOne("an archive"),
		RunE: f.keep,
	}
	f.add(command.Flags(), "image-cache-limit", "image-budget")
	f.addPlatform(command.Flags())
	return command
}

func newImageExportCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "export IMAGE FILE",
		Short: "Write an image of the folder as an archive",
		Long: `Writes an image as an archive with an OCI layout, for --image, 'podman load' and
'docker load'. Its files are the same, but its digest differs: the folder does
not keep the layers as the registry had packed them.`,
		Example: `  berth image export python:3.13-slim python.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return &usageError{errors.New("name an image and the file to write")}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			_, err := f.run(command, args, func(imagecache.Image) {})
			return err
		},
	}
	f.add(command.Flags(), "image-budget")
	f.addPlatform(command.Flags())
	return command
}

// imageForms lists the ways to pack layers.
var imageForms = []string{"estargz", "zstd"}

func newImageConvertCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "convert --to FORM IMAGE|ARCHIVE FILE",
		Short: "Repack the layers of an image, as eStargz or with zstd",
		Long: `Writes an archive with an OCI layout whose layers are packed in another way,
from an image in the folder, an archive, a SIF file or a folder with an OCI
layout. 'skopeo copy oci-archive:FILE docker://...' copies it to a registry.

estargz   gzip with a table of contents, for runtimes that start containers before
          a layer is complete. Its layers have other digests, and every runtime
          reads them.
zstd      faster to unpack than gzip, and mostly smaller; Docker 23, podman 3 and
          containerd 1.5 or newer read it. Layers of an archive keep their uncompressed
          content, so that caches recognize them.`,
		Example: `  berth image convert --to estargz python:3.13-slim python-esgz.tar
  berth image convert --to zstd app.tar app-zstd.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 2 || args[0] == "" || args[1] == "":
				return &usageError{errors.New("name an image or an archive, and the file to write")}
			case f.form == "":
				return &usageError{errors.New("choose how to pack the layers: --to estargz or --to zstd")}
			case !slices.Contains(imageForms, f.form):
				return &usageError{fmt.Errorf("pack layers as %q: give --to estargz or --to zstd", f.form)}
			}
			return nil
		},
		RunE: f.keep,
	}
	f.add(command.Flags(), "image-budget")
	f.addPlatform(command.Flags())
	command.Flags().StringVar(&f.form, "to", "", "`form` of the layers: estargz or zstd")
	return command
}

func newImageBundleCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "bundle IMAGE [FOLDER]",
		Short: "Make an OCI bundle of an image, for steps of Slurm",
		Long: `Unpacks an image of the folder into another one, with a config.json: an OCI
bundle for 'srun --container' of Slurm, where the site has an oci.conf, and for
runc and crun. No privilege is needed, neither here nor there: all files are
yours, and you are root inside. A container has the node's network, devices and
host name, its root is read-only, /tmp, /var/tmp and /run are in memory, and
--mount adds folders.

Without FOLDER the bundle is for 'srun --container-image=IMAGE', on sites with
berth's network: steps find it by its name, below the folder of the images. Give
--mount for each folder that the site shows in images.`,
		Example: `  berth image bundle --mount /project/alice python:3.13-slim /project/alice/python
  srun -N4 --container=/project/alice/python python3 /project/alice/step.py

  berth image bundle --mount /home python:3.13-slim
  srun -N4 --container-image=python:3.13-slim python3 step.py`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 || slices.Contains(args, "") {
				return &usageError{errors.New("name an image, and the folder to make")}
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := f.keep(command, args); err != nil || f.quiet {
				return err
			}
			line := "srun --container-image=" + args[0]
			if len(args) == 2 {
				dir, err := filepath.Abs(args[1])
				if err != nil {
					return err
				}
				line = "srun --container=" + dir
			} else if usual, err := imagecache.DefaultFolder(os.Getenv); err != nil || usual != f.spec.ImageCache {
				line = "BERTH_IMAGE_CACHE=" + f.spec.ImageCache + " " + line
			}
			_, err := fmt.Fprintf(command.ErrOrStderr(), "berth: run it with %s COMMAND\n", line)
			return err
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.add(command.Flags(), "mount", "image-budget")
	command.Flags().Lookup("mount").Usage = "host `folder` to mount in the container, as SRC[:DST][:ro]; can be repeated"
	return command
}

func newImageListCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "ls",
		Short: "List the images of the folder",
		Long: `Lists the images that were pulled or imported by name. An image is "incomplete"
if some of its layers were removed to free space: pull it again. Layers that
runs have left for later runs have no name; they are included in the sum.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, args []string) error {
			if err := checkOutput(f.output); err != nil {
				return err
			}
			images := []imagecache.Image{}
			sum, err := f.run(command, args, func(image imagecache.Image) { images = append(images, image) })
			if err != nil {
				return err
			}
			if f.output == "json" {
				return writeJSON(command.OutOrStdout(), images)
			}
			return writeImages(command.OutOrStdout(), images, sum, f.spec.ImageCache)
		},
	}
	f.add(command.Flags())
	command.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	return command
}

func writeImages(w io.Writer, images []imagecache.Image, sum imagecache.Sum, folder string) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tPLATFORM\tLAYERS\tSIZE\tAGE")
	for _, image := range images {
		layers := fmt.Sprint(image.Layers)
		if image.Missing > 0 {
			layers = fmt.Sprintf("incomplete %d/%d", image.Layers-image.Missing, image.Layers)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", image.Name, image.Platform, layers, size(image.Bytes), slurm.FormatSpan(time.Since(image.Time)))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d layers, %s, in %s\n", sum.Layers, size(sum.Bytes), folder)
	return err
}

func newImageRemoveCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images from the folder",
		Long:  "Removes images, for all platforms or one, and the layers that no other named image\nuses. Runs that use them keep them until they end.",
		Args:  atLeastOne("an image; 'berth image ls' lists them"),
		RunE: func(command *cobra.Command, args []string) error {
			_, err := f.run(command, args, func(image imagecache.Image) {
				if !f.quiet {
					fmt.Fprintf(command.OutOrStdout(), "removed %s, %s\n", image.Name, size(image.Freed))
				}
			})
			return err
		},
	}
	f.add(command.Flags())
	f.addPlatform(command.Flags())
	command.Flags().Lookup("platform").Usage = "only for this `platform`, such as linux/arm64 (default: for all)"
	return command
}

func newImageCollectCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "gc",
		Short: "Free space in the folder",
		Long: `Removes what crashed runs left, and then the least recently used layers until
the rest fits into --image-cache-limit: first layers that runs have left, then
layers of named images. Runs do the same every hour.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, args []string) error {
			sum, err := f.run(command, args, func(imagecache.Image) {})
			if err == nil && !f.quiet {
				fmt.Fprintf(command.OutOrStdout(), "removed %s; %d layers, %s, are left\n", size(sum.Freed), sum.Layers, size(sum.Bytes))
			}
			return err
		},
	}
	f.add(command.Flags(), "image-cache-limit")
	return command
}

func newImageVerifyCommand() *cobra.Command {
	f := &imageFlags{}
	command := &cobra.Command{
		Use:   "verify [IMAGE...]",
		Short: "Check the images in the folder against their checksums",
		Long: `Reads all images of the folder, or those named, and compares them with their
checksums. Damaged files are moved to the folder "damaged", so that no run uses
them.`,
		RunE: func(command *cobra.Command, args []string) error {
			sum, err := f.run(command, args, func(imagecache.Image) {})
			if err == nil && !f.quiet {
				fmt.Fprintf(command.OutOrStdout(), "%d layers are good\n", sum.Layers)
			}
			return err
		},
	}
	f.add(command.Flags())
	return command
}

// size formats a number of bytes for a person.
func size(bytes int64) string {
	if bytes < 1e3 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes), 0
	for value >= 999.5 && unit < 4 {
		value /= 1e3
		unit++
	}
	return fmt.Sprintf("%.3g %cB", value, "kMGT"[unit-1])
}

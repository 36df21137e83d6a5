"""Pictures of what adaptation did: t-SNE of the features and Grad-CAM of the images."""
